"""statsforecast and prophet behind the protocol; by name, where they are installed."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from surgetank.adapters.forecast_models import model
from surgetank.errors import InputError
from surgetank.traffic.backtest import backtest
from surgetank.traffic.forecast import named

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("name", ["statsforecast", "prophet"])
@pytest.mark.filterwarnings("ignore")  # theirs
def test_a_librarys_model_is_judged_beside_our_own(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        with pytest.raises(InputError, match=f"{name} is not installed: pip install"):
            model(name)
        pytest.skip(f"{name} is not installed: make forecast-models")
    wave = 20 + 8 * np.sin(2 * np.pi * np.arange(600) / 150)
    values = np.random.default_rng(1).poisson(wave).astype(np.float64)
    found = backtest("x", values, [*named(600.0), model(name)], step=1.0, horizon=5.0)
    judged = {j.forecaster: j for j in found.judged}
    theirs, last = judged[name], judged["last value"]
    assert theirs.forecasts > 250
    assert theirs.mae is not None
    assert last.mae is not None
    # AutoETS follows the wave; Prophet, which cannot go on between two fits, is a part off it
    assert theirs.mae < {"statsforecast": 1.0, "prophet": 2.0}[name] * last.mae
