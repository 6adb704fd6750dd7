"""standardize=True: every column in standard deviations of all clients' training examples, applied again by a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from torch import nn

import wafl
from wafl.config.experiment import Data
from wafl.flower.node import site

pytestmark = pytest.mark.filterwarnings("ignore::wafl.OptimumWarning")
FEATURES = ["age", "dose", "rate"]


def frame(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    columns = [rng.normal(50, 15, 80), rng.normal(130, 20, 80), rng.normal(0.003, 0.001, 80)]
    rows = pd.DataFrame(dict(zip(FEATURES, columns, strict=True)))
    rows["site"] = np.arange(80) % 4
    rows["sick"] = np.where(rows.age / 15 + rows.dose / 20 + rng.normal(0, 0.5, 80) > 9.8, "yes", "no")
    return rows


def federation(**options: Any) -> wafl.Federation:
    return wafl.Federation.from_frame(frame(), client="site", target="sick", standardize=True, **options)


def statistics_of(clients: wafl.Federation) -> tuple[torch.Tensor, torch.Tensor]:
    shift, scale = clients.train.prepare.shift, clients.train.prepare.scale
    assert shift is not None
    assert scale is not None
    return shift, scale


@pytest.fixture(scope="module")
def clients() -> wafl.Federation:
    return federation()


@pytest.fixture(scope="module")
def run(clients: wafl.Federation) -> wafl.Run:
    return wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=20, local_steps=3, learning_rate=0.5)


def test_statistics_are_those_of_all_training_examples_and_follow_from_sums_per_client(
    clients: wafl.Federation,
) -> None:
    x, train = clients.train.x, clients.train
    assert x.mean(0).abs().max() < 1e-6
    assert x.std(0, correction=0) == pytest.approx(torch.ones(3), abs=1e-6)
    parts = [train.raw[train.offsets[i] : train.offsets[i + 1]].double() for i in range(4)]
    total, square = (torch.stack([each.sum(0) for each in of]).sum(0) for of in (parts, [p * p for p in parts]))
    shift, scale = statistics_of(clients)
    assert torch.allclose(shift, total / len(train.y))
    assert torch.allclose(scale, (square / len(train.y) - (total / len(train.y)) ** 2).sqrt())
    assert clients.test.prepare is train.prepare


def test_the_same_bits_as_scaling_by_hand(run: wafl.Run, clients: wafl.Federation) -> None:
    x, test = clients.train, clients.test
    parts = [(*x.of(i), *test.of(i)) for i in range(4)]
    by_hand = wafl.Federation.from_arrays(parts, names=clients.names)
    again = wafl.fit(wafl.models.mlr(by_hand), by_hand, wafl.FedAvg(), rounds=20, local_steps=3, learning_rate=0.5)
    assert all(torch.equal(value, again.params[name]) for name, value in run.params.items())


def test_a_run_predicts_from_raw_frames_and_arrays_also_when_loaded(
    run: wafl.Run, clients: wafl.Federation, tmp_path: Path
) -> None:
    rows = frame(1)
    weight, bias = run.params.values()
    shift, scale = statistics_of(clients)
    raw = torch.tensor(rows[FEATURES].to_numpy())
    expected = ((raw - shift) / scale).float() @ weight.T + bias
    for each in (run, wafl.load_run(run.save(tmp_path / "run"))):
        assert torch.allclose(each.outputs(rows), expected, atol=1e-5)
        assert torch.allclose(each.outputs(rows[FEATURES].to_numpy()), expected, atol=1e-5)
        assert torch.allclose(each.outputs(rows[["site", "rate", "dose", "age"]]), expected, atol=1e-5)
    accuracy = (run.predict(rows) == rows.sick.to_numpy()).mean()
    assert accuracy > 0.85
    with pytest.raises(ValueError, match="features='rate' is not a column of the frame"):
        run.predict(rows.drop(columns="rate"))
    with pytest.raises(ValueError, match=r"trained on examples of shape \(3,\) \(the columns age, dose, rate\)"):
        run.predict(np.zeros((2, 4)))


def test_examples_that_were_standardized_already_are_warned_about(run: wafl.Run, clients: wafl.Federation) -> None:
    run.outputs(clients.train.raw)
    with pytest.warns(wafl.UnitWarning, match="looks standardized already"):
        run.outputs(clients.train.x)


def test_an_export_takes_raw_numbers(run: wafl.Run, clients: wafl.Federation, tmp_path: Path) -> None:
    with safe_open(run.export(tmp_path / "model.safetensors"), "pt") as file:
        names = ("shift", "scale", "model.1.weight", "model.1.bias")
        shift, scale, weight, bias = map(file.get_tensor, names)
    raw = clients.test.raw[:].float()
    assert torch.allclose((raw - shift) / scale @ weight.T + bias, run.outputs(clients.test.raw), atol=1e-4)


def test_certificates_are_in_standard_deviations_and_print_each_factor(run: wafl.Run, clients: wafl.Federation) -> None:
    text = str(wafl.certify(run, clients, radii=[0.1], achieved=False))
    assert "standard deviations (age " in text
    factors = re.findall(r"one standard deviation of each column: age ([\d.]+), dose ([\d.]+), rate ([\d.]+)", text)
    scale = statistics_of(clients)[1]
    assert [float(each) for each in factors[0]] == pytest.approx(scale.tolist(), rel=1e-3)


def test_clients_with_other_statistics_are_refused_and_can_be_prepared(run: wafl.Run, clients: wafl.Federation) -> None:
    options: dict[str, Any] = {"client": "site", "target": "sick"}
    with pytest.warns(wafl.DataWarning, match="scale your columns, such as with standardize=True"):
        raw = wafl.Federation.from_frame(frame(), **options)
    other = wafl.Federation.from_frame(frame(2), standardize=True, **options)
    for each in (raw, other):
        with pytest.raises(ValueError, match=r"not standardized by the means.*prepared_by\(run.intake.prepare\)"):
            wafl.evaluate(run, each)
    score = wafl.evaluate(run, raw.prepared_by(run.intake.prepare))
    assert score.loss == wafl.evaluate(run, clients).loss


def test_clients_that_are_held_out_leave_their_statistics_with_the_others(clients: wafl.Federation) -> None:
    seen, unseen = clients.hold_out(0.25)
    assert seen.train.x.mean(0).abs().max() < 1e-6
    assert unseen.unit == seen.unit != clients.unit
    assert torch.equal(statistics_of(unseen)[1], statistics_of(seen)[1])


def test_what_contradicts_it_is_refused() -> None:
    pairs = [(np.ones((4, 2)), np.arange(4) % 2)]
    for options in ({"bounds": (0, 1)}, {"unit": "mV"}, {"preprocess": "unit"}):
        with pytest.raises(ValueError, match="standardize=True makes standard deviations"):
            wafl.Federation.from_arrays(pairs, standardize=True, **options)  # pyright: ignore[reportArgumentType]
    constant = wafl.Federation.from_arrays(pairs, standardize=True)
    assert not constant.train.x.any(), "a column that never varies is centered"


def test_a_node_does_not_standardize_by_its_own_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "imported", lambda *_: federation)
    with pytest.raises(ValueError, match="with the means of this node alone"):
        site.open_site({"data": "mine:federation"}, Data.model_validate({}))


def test_a_network_of_your_own_trains_on_standardized_columns(clients: wafl.Federation) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    run = wafl.fit(model, clients, wafl.WAFL(radius=0.1), rounds=3, local_steps=2)
    assert run.predict(frame(1)).shape == (80,)
