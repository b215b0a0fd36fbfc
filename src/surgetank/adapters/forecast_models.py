"""Models of forecasting libraries behind the Forecaster protocol: the `[forecast]` extra.

They are fitted anew to the latest steps now and then, since they know no online form; between two
fits the forecast of the last one is read off.

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


class Refitted:
    """A model that is fitted anew every so often. `fit(history, ahead)` gives forecasts to come."""

    def __init__(
        self,
        fit: Callable[[np.ndarray[Any, np.dtype[np.float64]], int], Any],
        horizon: float,
        step: float,
    ) -> None:
        self._fit = fit
        self._ahead = max(1, round(horizon / step))
        self._history: deque[float] = deque(maxlen=_HISTORY)
        self._seen = 0
        self._fitted_at = -1
        self._forecast: Any = ()

    def observe(self, rate: float, now: float) -> None:  # noqa: ARG002 - equal steps
        self._history.append(rate)
        self._seen += 1
        if self._seen >= _LEAST and (self._fitted_at < 0 or self._seen - self._fitted_at >= _REFIT):
            self._forecast = self._fit(np.array(self._history), self._ahead + _REFIT)
            self._fitted_at = self._seen

    def predict(self, horizon: float, now: float) -> float | None:  # noqa: ARG002 - one horizon
        if self._fitted_at < 0:
            return None
        value = float(self._forecast[self._seen - self._fitted_at + self._ahead - 1])
        return max(0.0, value) if np.isfinite(value) else None


def _statsforecast(horizon: float, step: float) -> Forecaster:
    models = _library("statsforecast.models", "statsforecast")

    def fit(history: np.ndarray[Any, np.dtype[np.float64]], ahead: int) -> Any:
        return models.AutoETS(season_length=1, damped=True).forecast(history, ahead)["mean"]

    return Refitted(fit, horizon, step)


def _prophet(horizon: float, step: float) -> Forecaster:
    prophet = _library("prophet", "prophet")
    pandas = _library("pandas", "pandas")
    for name in ("cmdstanpy", "prophet"):
        logging.getLogger(name).setLevel(logging.ERROR)

    def fit(history: np.ndarray[Any, np.dtype[np.float64]], ahead: int) -> Any:
        at = pandas.date_range("2000-01-01", periods=len(history) + ahead, freq=f"{step:g}s")
        model = prophet.Prophet(uncertainty_samples=0)
        model.fit(pandas.DataFrame({"ds": at[: len(history)], "y": history}))
        future = pandas.DataFrame({"ds": at[len(history) :]})
        return model.predict(future)["yhat"].to_numpy()

    return Refitted(fit, horizon, step)


_MODELS: Final[dict[str, tuple[str, Callable[[float, float], Forecaster]]]] = {
    "statsforecast": ("AutoETS, fitted anew every 120 steps", _statsforecast),
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
