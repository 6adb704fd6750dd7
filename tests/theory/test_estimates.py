"""Bounds that are not proven are called estimates, in the first line and in the column, wherever they are shown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wafl
from tests.promises.files import publish, publish_next_client
from wafl.base.describe import rounded_up
from wafl.studies.pages.measured import measure
from wafl.theory.summary import promised

SEQUENCE = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))


class Net(nn.Module):
    """The layers of SEQUENCE, with an operation without a proof that changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = SEQUENCE[0], SEQUENCE[2]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)).clamp_max(1e9))


class Line(nn.Module):
    """A linear model, whose ascent is short, with an operation without a proof that changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.clamp_max(1e9))


class Declared(Net):
    def __init__(self) -> None:
        super().__init__()
        self.lipschitz = 5.0


def clients(bounds: tuple[float, float] | None = (0.0, 1.0)) -> wafl.Federation:
    rng = np.random.default_rng(0)
    pairs = [(x := rng.random((24, 6)), (x.sum(1) > 3.0).astype(np.int64)) for _ in range(6)]
    return wafl.Federation.from_arrays(pairs, bounds=bounds, num_classes=2)


def test_the_same_weights_are_certified_as_a_sequence_and_estimated_with_an_unknown_operation() -> None:
    options = {"radii": [0.1, 0.5], "achieved": False}
    proven, guessed = (wafl.certify(model, clients(), **options) for model in (SEQUENCE, Net()))
    assert guessed[1].value < proven[1].value, "which is why it must not be called certified"
    for text in (str(proven), repr(proven)):
        assert text.splitlines()[0].split() == ["radius", "achieved", "certified", "simple", "gamma"]
        assert "estimate" not in text
    for text in (str(guessed), repr(guessed), f"{guessed}"):
        first, header, *rows, last = text.splitlines()
        assert first == (
            "Not proven: this model has no proof, because `clamp_max` at `self.forward` has no proof; the numbers "
            "below are estimates and can be below the truth."
        )
        assert header.split() == ["radius", "achieved", "estimate", "simple", "gamma"]
        assert [row.split()[2] for row in rows] == [rounded_up(guessed.best_proven(row)) for row in guessed.rows]
        assert last.endswith("the estimate is not proven")
        assert "certified" not in text
    assert (proven.to_json()["column"], guessed.to_json()["column"]) == ("certified", "estimate")
    assert "caveat" not in proven.to_json()
    assert json.loads(json.dumps(guessed.to_json()))["caveat"] == guessed.caveat


def a_hooked_layer() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
    model[1].register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Sequential(nn.Linear(6, 4), nn.ELU(), nn.Linear(4, 2)), "`ELU` at `self[1]` has no proof"),
        (nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 2)), "`LayerNorm` at `self[1]` has no proof"),
        (nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2), nn.Tanh()), "it does not end with a linear layer"),
        (nn.Sequential(Net(), nn.Linear(2, 2)), "`clamp_max` at `self[0].forward` has no proof"),
        (a_hooked_layer(), "`Tanh` at `self[1]` has hooks"),
    ],
)
def test_the_first_line_says_what_has_no_bound(model: nn.Module, reason: str) -> None:
    assert reason in str(wafl.certify(model, clients(), radii=[0.1], achieved=False)).splitlines()[0]


def test_a_declared_constant_is_not_a_proof() -> None:
    bounds = wafl.certify(Declared(), clients(), radii=[0.0, 0.1], metric="error")
    first, header, *_ = str(bounds).splitlines()
    assert "its Lipschitz constant is only attested (model.lipschitz)" in first
    assert header.split()[2] == "estimate"
    seen, unseen = clients().hold_out(0.5)
    moved = wafl.next_client(Declared(), seen, unseen, radius=0.1, metric="error")
    assert not moved.proven
    assert str(moved).splitlines()[0].startswith("Not proven: this model has no proof, because its Lipschitz constant")
    assert wafl.next_client(Declared(), seen, unseen, metric="error").proven, "nothing moves"


def test_a_run_is_promised_nothing_that_is_not_proven() -> None:
    seen, unseen = clients().hold_out(0.5)
    run = wafl.fit(Declared(), seen, wafl.FedAvg(), rounds=1, local_steps=1)
    result = wafl.certify(run, seen, radii=[0.1], metric="error")
    for each in promised(run, seen, unseen, result, 0):
        assert each.value is None, each.whom
        assert "this model has no proof, because its Lipschitz constant is only attested" in each.why


def test_figures_and_pages_say_estimate(tmp_path: Path) -> None:
    guessed, proven = (wafl.certify(model, clients(), radii=[0.0, 0.1]) for model in (Line(), SEQUENCE))
    (axes,) = guessed.plot().axes
    assert axes.get_title().splitlines()[0] == "Not proven: an estimate can be below the truth"
    assert "certified" not in axes.get_title()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["this run (estimate)"]
    (stop, _) = guessed.walk("run").stops
    assert {name: reading.bound for name, reading in stop.numbers.items()} == {
        "loss reached": False,
        "loss estimate": False,
    }
    page = guessed.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Not proven: this model has no proof, because `clamp_max` at `self.forward` has no proof" in page
    assert "what is certified" not in page
    assert "Not proven" not in proven.report(tmp_path / "proven.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_sliders_of_a_study_say_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wafl.studies.pages.measured.SIZES", (0.0, 0.1))
    federation = clients()
    run = wafl.fit(Line(), federation, wafl.FedAvg(), rounds=1, local_steps=1)
    sweep = wafl.sweep(Line(), federation, wafl.WAFL(gamma=1.0), grid={"gamma": [1.0, 2.0]}, rounds=1, local_steps=1)
    runs = {"FedAvg": run, "WAFL 1": sweep[0], "WAFL 2": sweep[1]}
    (radius,) = (section for section in measure(runs, federation) if section.title == "Radius")
    assert radius.lead.startswith(
        "Not proven: this model has no proof, because `clamp_max` at `self.forward` has no proof"
    )
    assert radius.lead.count("Not proven") == 1
    assert "certified" not in radius.lead
    walks = radius.blocks[0].walks  # type: ignore[attr-defined]
    assert len(walks) == 3, "a sweep, and two methods"
    for walk in walks:
        assert {line["name"] for line in walk.figure["data"]} == {"estimate", "reached"}
        assert all("loss estimate" in stop.numbers and not stop.numbers["loss estimate"].bound for stop in walk.stops)


def test_without_a_proof_a_file_is_attested_and_no_site_is_audited(tmp_path: Path) -> None:
    federation = clients()
    assert "`clamp_max` at `self.forward` has no proof" in publish(Net(), federation, radii=[0.1]).parts.attested
    seen, unseen = federation.hold_out(0.5)
    with pytest.raises(wafl.PreconditionError, match="needs a proven L_z"):
        publish_next_client(Net(), seen, unseen, radius=0.1)
    publish(SEQUENCE, federation, radii=[0.1], points=2).save(tmp_path / "certificate.json")
    with pytest.raises(ValueError, match="is about a different model"):
        wafl.audit(tmp_path / "certificate.json", Net(), federation)


def test_a_row_has_a_certified_value_only_with_a_proof() -> None:
    proven, guessed = (wafl.certify(model, clients(), radii=[0.0, 0.1]) for model in (SEQUENCE, Net()))
    assert [row.certified for row in proven.rows] == [min(row.value, row.simple) for row in proven.rows]
    assert [row.certified for row in guessed.rows] == [None, None]
    assert all(row["certified"] is None for row in guessed.to_json()["certificates"])
