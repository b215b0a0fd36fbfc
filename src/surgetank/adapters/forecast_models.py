"""Models of forecasting libraries behind the Forecaster protocol: the `[forecast]` extra.

They are fitted anew to the latest steps now and then, since fitting them costs too much for each.
Between two fits AutoETS goes on with the states that its parameters give to what came since;
Prophet knows no such thing, and the forecast of its last fit is read off.

Rule: imported only when asked for; a library that is not there is one clear line.
"""

from __future__ import annotations

import importlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from surgetank.errors import InputError
from surgetank.policy.forecaster import Forecaster
from surgetank.traffic.forecast import Named

_REFIT: Final = 120  # steps between two fits
_LEAST: Final = 120  # steps before the first
_HISTORY: Final = 1440  # latest steps that are fitted


_Values = np.ndarray[Any, np.dtype[np.float64]]
_Fitted = Callable[[_Values, int], float]
"""The latest values, and how many came since the fit: the value to come at the horizon."""


class Refitted:
    """A model that is fitted anew every so often. `fit`: to the latest values, for so far ahead."""

    def __init__(self, fit: Callable[[_Values, int], _Fitted], horizon: float, step: float) -> None:
        self._fit = fit
        self._ahead = max(1, round(horizon / step))
        self._history: deque[float] = deque(maxlen=_HISTORY)
        self._since = 0
        self._fitted: _Fitted | None = None

    def observe(self, rate: float, now: float) -> None:  # noqa: ARG002 - equal steps
        self._history.append(rate)
        self._since += 1
        if self._since >= _REFIT and len(self._history) >= _LEAST:
            self._fitted = self._fit(np.array(self._history), self._ahead)
            self._since = 0

    def predict(self, horizon: float, now: float) -> float | None:  # noqa: ARG002 - one horizon
        if self._fitted is None:
            return None
        value = float(self._fitted(np.array(self._history), self._since))
        return max(0.0, value) if np.isfinite(value) else None


def _statsforecast(horizon: float, step: float) -> Forecaster:
    models = _library("statsforecast.models", "statsforecast")

    def fit(history: _Values, ahead: int) -> _Fitted:
        fitted = models.AutoETS(season_length=1, damped=True).fit(history)

        def value(latest: _Values, since: int) -> float:
            if since == 0:
                return float(fitted.predict(ahead)["mean"][-1])
            return float(fitted.forward(latest, ahead)["mean"][-1])

        return value

    return Refitted(fit, horizon, step)


def _prophet(horizon: float, step: float) -> Forecaster:
    prophet = _library("prophet", "prophet")
    pandas = _library("pandas", "pandas")
    for name in ("cmdstanpy", "prophet"):
        logging.getLogger(name).setLevel(logging.ERROR)

    def fit(history: _Values, ahead: int) -> _Fitted:
        at = pandas.date_range(
            "2000-01-01", periods=len(history) + ahead + _REFIT, freq=f"{step:g}s"
        )
        model = prophet.Prophet(uncertainty_samples=0)
        model.fit(pandas.DataFrame({"ds": at[: len(history)], "y": history}))
        future = pandas.DataFrame({"ds": at[len(history) :]})
        forecast = model.predict(future)["yhat"].to_numpy()
        return lambda _latest, since: float(forecast[since + ahead - 1])

    return Refitted(fit, horizon, step)


_MODELS: Final[dict[str, tuple[str, Callable[[float, float], Forecaster]]]] = {
    "statsforecast": ("AutoETS, its parameters fitted anew every 120 steps", _statsforecast),
    "prophet": ("Prophet, fitted anew every 120 steps", _prophet),
}


def model(name: str) -> Named:
    """Give a library's model by name. Raises InputError for one that is not there."""
    found = _MODELS.get(name)
    if found is None:
        raise InputError(f"--models {name}: must be of {', '.join(_MODELS)}")
    _library(name, name)
    about, make = found
    return Named(name, about, make)


def _library(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"--models {name}: {name} is not installed: pip install 'surgetank[forecast]'"
        ) from None
