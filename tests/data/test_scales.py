"""Columns on very different scales, and clients of a single class, are named before they cost an hour."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import wafl
from wafl.data.scales import column_scales, uneven_columns
from wafl.sklearn import WassersteinClassifier


def frame(ratio: float = 0.003) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age, pressure, rate = rng.normal(50, 15, 120), rng.normal(130, 20, 120), rng.normal(ratio, ratio / 3, 120)
    sick = (age / 15 + pressure / 20 + rng.normal(0, 0.5, 120) > 9.8).astype(int)
    return pd.DataFrame({"site": np.arange(120) % 4, "age": age, "bp": pressure, "rate": rate, "sick": sick})


def test_a_scale_is_the_root_mean_square_of_what_is_not_zero() -> None:
    x = torch.tensor([[3.0, 0.0, 0.0], [4.0, 2.0, 0.0]])
    clients = wafl.Federation.from_arrays([(x, torch.tensor([0, 1]))], test_fraction=0)
    assert column_scales(clients.train).tolist() == pytest.approx([12.5**0.5, 2.0, 0.0])
    assert uneven_columns(clients.train, None) == "", "columns of zeros have no scale"
    assert "column 0 has values of about 3.54" in uneven_columns(clients.train, None, large=3.0)


def test_a_frame_with_uneven_columns_says_which_and_what_to_do() -> None:
    with pytest.warns(wafl.DataWarning, match="'bp' has values of about 12.*'rate' of about 0.003.*scale your columns"):
        wafl.Federation.from_frame(frame(), client="site", target="sick")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wafl.Federation.from_frame(frame(3.0), client="site", target="sick")


def test_a_client_of_a_single_class_is_mentioned_once() -> None:
    rows = frame(3.0)
    rows.loc[rows.site == 2, "sick"] = 1
    with pytest.warns(wafl.DataWarning) as caught:
        clients = wafl.Federation.from_frame(rows, client="site", target="sick")
    message = "1 of 4 clients has examples of a single class: 2"
    assert [str(each.message) for each in caught] == [message]
    assert message in clients.describe()


def test_an_estimator_names_uneven_columns() -> None:
    rows = frame()
    with pytest.warns(wafl.DataWarning, match="'bp' has values.*StandardScaler"):
        WassersteinClassifier(0.0, tol=0.5).fit(rows[["age", "bp", "rate"]], rows["sick"])


@pytest.mark.parametrize("ratio", [0.003, 3.0])
def test_the_warning_of_a_growing_loss_says_scale_and_not_that_clients_lie(ratio: float) -> None:
    rows = frame(ratio)
    x, y = rows[["age", "bp", "rate"]].to_numpy(), rows["sick"].to_numpy()
    clients = wafl.Federation.from_arrays([(x[rows.site == site], y[rows.site == site]) for site in range(4)])
    with pytest.warns(wafl.DivergenceWarning, match="scale your columns, such as with standardize=True$"):
        wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=8, local_steps=3, learning_rate=0.5)


@pytest.mark.parametrize("options", [{}, {"gamma": 0.5}, {"radius": 0.2}])
def test_a_ball_whose_size_nobody_chose_is_reported_with_the_radius_it_has(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    clients = wafl.Federation.from_arrays([(rng.normal(size=(20, 3)), np.arange(20) % 2) for _ in range(2)], unit="mV")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = wafl.fit(wafl.models.mlr(clients), clients, wafl.WAFL(**options), rounds=4, local_steps=2)
    said = [str(each.message) for each in caught if "you gave neither" in str(each.message)]
    if options:
        assert said == []
    else:
        (message,) = said
        (radius,) = re.findall(r"radius ([\d.e-]+) \(l2, mV\)", message)
        assert float(radius) == pytest.approx(run.history[-1].achieved_radius, rel=1e-2)
        assert "radius='auto'" in message
