"""A proof never rests on what a user's loss states about itself, however the loss comes by its traits."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wafl
from wafl.tasks.losses import CrossEntropy, MarginLoss, OutputLoss, SquaredError, is_built_in, spelled
from wafl.theory.certificates.certificate import Certificates

RNG = np.random.default_rng(0)
CLASSES, TARGETS = (
    wafl.Federation.from_arrays([(x, y(x)) for x in RNG.normal(size=(4, 20, 3))], num_classes=classes)
    for y, classes in ((lambda x: (x.sum(1) > 0.0).astype(np.int64), 2), (lambda x: x @ np.ones((3, 1)), None))
)


def ten_times(outputs: Tensor, y: Tensor) -> Tensor:
    return 10.0 * CrossEntropy().value(outputs, y)


class Steep(OutputLoss):
    """Ten times the cross-entropy where the outputs are large, and the cross-entropy near the examples."""

    labels = "classes"

    def value(self, outputs: Tensor, y: Tensor) -> Tensor:
        return torch.where(outputs.abs().amax(-1) > 50.0, 10.0, 1.0) * CrossEntropy().value(outputs, y)


class Logistic(Steep):
    logistic = True


class Sloped(Steep):
    def slopes(self, weight: Tensor, norm: float = 2) -> Tensor:
        return CrossEntropy().slopes(weight, norm)

    def curvature(self, weight: Tensor, norm: float = 2) -> Tensor:
        return CrossEntropy().curvature(weight, norm)


class Inherited(CrossEntropy):
    def value(self, outputs: Tensor, y: Tensor) -> Tensor:
        return Steep().value(outputs, y)


class Margin(MarginLoss):
    """The name and the margins of a built-in loss, without its slopes, which would be a claim of their own."""

    name = "cross_entropy"
    slopes = OutputLoss.slopes
    curvature = OutputLoss.curvature

    def value(self, outputs: Tensor, y: Tensor) -> Tensor:
        return ten_times(outputs, y)


class Quadratic(OutputLoss):
    labels = "targets"
    quadratic = 0.5
    name = "squared_error"

    def value(self, outputs: Tensor, y: Tensor) -> Tensor:
        square = (outputs - y.view_as(outputs)).square().sum(-1)
        return torch.where(square > 1e4, 50.0, 0.5) * square


def patched_instance() -> CrossEntropy:
    loss = CrossEntropy()
    object.__setattr__(loss, "value", ten_times)
    return loss


FALSE: dict[str, OutputLoss] = {
    "logistic": Logistic(),
    "slopes and curvature": Sloped(),
    "a subclass of the cross-entropy": Inherited(),
    "a subclass of the margin loss": Margin(),
    "another function on the instance": patched_instance(),
    "a copy of a subclass": replace(Margin(), offset=0.5),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def linear(outputs: int = 2) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, outputs)


def nothing_is_proven(result: Certificates, model: nn.Module, clients: wafl.Federation, file: Path) -> None:
    assert not result.certifies
    assert [row.certified for row in result.rows] == [None] * len(result)
    assert str(result).startswith("Not proven: ")
    assert "is only a claim" in str(result).splitlines()[0]
    try:
        result.save(file)
    except wafl.PreconditionError as error:
        assert any(why in str(error) for why in ("refuted by the data", "the estimate is infinite"))  # noqa: PT017
        return
    assert result.source is not None
    checked = wafl.verify(file, model=model, data=clients, loss=result.source.loss)
    assert checked.verdict == "ATTESTED"
    assert "is only a claim" in file.with_suffix(".md").read_text().replace("\n", " ")


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("make", [linear, network])
@pytest.mark.parametrize("name", FALSE)
def test_nothing_is_proven_of_a_loss_that_only_claims(name: str, make, power: int, tmp_path: Path) -> None:
    options = {"radii": [0.0, 0.3], "power": power, "loss": FALSE[name]}
    if "instance" in name:
        with pytest.raises(ValueError, match=r"`logistic = True`.* is false: it implies a loss of .* leave it out"):
            wafl.certify(make(), CLASSES, **options)
        return
    nothing_is_proven(wafl.certify(make(), CLASSES, **options), make(), CLASSES, tmp_path / "c.json")


def test_nothing_is_proven_of_a_regression_whose_loss_only_claims(tmp_path: Path) -> None:
    for options in ({}, {"norm": math.inf}, {"label_cost": 2.0}):
        result = wafl.certify(linear(1), TARGETS, radii=[0.3], loss=Quadratic(), **options)
        assert not result.certifies
        assert "`quadratic = 0.5` of the loss squared_error is only a claim" in str(result)
    result = wafl.certify(linear(1), TARGETS, radii=[0.0, 0.3], loss=Quadratic())
    nothing_is_proven(result, linear(1), TARGETS, tmp_path / "c.json")


@pytest.mark.parametrize("name", [name for name in FALSE if "instance" not in name])
def test_the_next_client_is_promised_nothing_by_a_loss_that_only_claims(name: str) -> None:
    seen, unseen = CLASSES.hold_out(0.5)
    result = wafl.next_client(network(), seen, unseen, radius=0.3, loss=FALSE[name])
    assert not result.proven
    assert "is only a claim" in str(result).splitlines()[0]
    with pytest.raises(wafl.PreconditionError, match="saved only with a proof"):
        result.publish()
    bounded = wafl.Federation.from_arrays([CLASSES.train.of(i) for i in range(4)], bounds=(-9.0, 9.0), num_classes=2)
    with pytest.raises(wafl.PreconditionError, match="confidence needs"):
        wafl.certify(network(), bounded, radii=[0.3], split="test", confidence=0.9, loss=FALSE[name])


@pytest.mark.parametrize("name", FALSE)
def test_a_proven_file_is_not_proven_for_a_loss_that_only_claims(name: str, tmp_path: Path) -> None:
    wafl.certify(linear(), CLASSES, radii=[0.3]).save(tmp_path / "c.json")
    assert wafl.verify(tmp_path / "c.json", model=linear(), data=CLASSES).verdict == "PROVEN"
    checked = wafl.verify(tmp_path / "c.json", model=linear(), data=CLASSES, loss=FALSE[name])
    assert checked.verdict in ("ATTESTED", "WRONG")
    assert not checked.promise.proven


@pytest.mark.parametrize(("kind", "name"), [(CrossEntropy, "value"), (OutputLoss, "value"), (MarginLoss, "logits")])
def test_a_patched_class_is_no_longer_built_in(kind: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = MarginLoss() if kind is MarginLoss else CrossEntropy()
    assert is_built_in(loss)
    assert spelled(loss) == loss.name
    monkeypatch.setattr(kind, name, lambda self, outputs, y: ten_times(outputs, y))
    assert not is_built_in(loss)
    assert spelled(loss) is None
    monkeypatch.undo()
    assert is_built_in(loss)


def test_numbers_that_no_margin_loss_has_are_refused() -> None:
    loss = MarginLoss()
    object.__setattr__(loss, "temperature", -1.0)
    with pytest.raises(ValueError, match=r"temperature=-1\.0"):
        wafl.certify(linear(), CLASSES, radii=[0.3], loss=loss)


def test_numbers_of_a_class_of_their_own_are_only_a_claim() -> None:
    class Zero(float):
        def __mul__(self, other: object) -> object:
            return 0.0 * other  # type: ignore[operator]

    assert is_built_in(MarginLoss(np.float64(1.0), 1))
    assert not is_built_in(MarginLoss(1.0, Zero(0.5)))
    assert not wafl.certify(linear(), CLASSES, radii=[0.3], loss=MarginLoss(1.0, Zero(0.5)), achieved=False).certifies


def test_a_loss_without_a_dictionary_is_no_built_in() -> None:
    class Slotted:
        __slots__ = ()

    assert not any(map(is_built_in, (Slotted(), torch.relu, "cross_entropy", CrossEntropy)))


def test_a_patched_value_is_noticed_before_anything_is_proven(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wafl.certify(linear(), CLASSES, radii=[0.3]).save(tmp_path / "c.json")
    monkeypatch.setattr(SquaredError, "value", lambda self, outputs, y: 10.0 * (outputs - y).square().sum(-1))
    assert not wafl.certify(linear(1), TARGETS, radii=[0.3], loss="squared_error").certifies
    value = CrossEntropy.value
    monkeypatch.setattr(CrossEntropy, "value", lambda self, outputs, y: value(self, outputs, y) / 2.0)
    checked = wafl.verify(tmp_path / "c.json", model=linear(), data=CLASSES)
    assert checked.verdict != "PROVEN"


def test_constants_that_rest_on_a_claim_are_attested() -> None:
    known = wafl.theory.constants(linear(), CLASSES, loss=Logistic())
    honest = wafl.theory.constants(linear(), CLASSES)
    assert (known.L_z, known.L_zz, known.max_loss) == (honest.L_z, honest.L_zz, honest.max_loss)
    assert known.L_z.kind == known.L_zz.kind == known.max_loss.kind == "attested"
    assert "rests on `logistic = True` of the loss Logistic" in known.L_z.why


def test_error_rates_and_sets_do_not_depend_on_the_loss() -> None:
    """They are about the outputs alone, so they stay proven."""
    for model in (linear(), network()):
        ours, theirs = (
            wafl.certify(model, CLASSES, radii=[0.3], metric="error", loss=loss) for loss in (Logistic(), None)
        )
        assert ours.certifies
        assert [row.value for row in ours.rows] == [row.value for row in theirs.rows]
    sets = [
        wafl.prediction_sets(
            wafl.fit(linear(), CLASSES, wafl.FedAvg(), rounds=1, local_steps=1, learning_rate=1e-9, loss=loss),
            CLASSES,
            radius=0.1,
            coverage=0.5,
            confidence=0.5,
        )
        for loss in ("cross_entropy", FALSE["logistic"])
    ]
    assert sets[0].threshold == pytest.approx(sets[1].threshold, abs=1e-6)


def test_a_subclass_trains_with_its_own_values() -> None:
    """A subclass of a built-in loss is another loss, in training and in a saved run."""

    class Tenfold(CrossEntropy):
        def value(self, outputs: Tensor, y: Tensor) -> Tensor:
            return ten_times(outputs, y)

        def gradient(self, outputs: Tensor, y: Tensor) -> Tensor:
            return 10.0 * CrossEntropy().gradient(outputs, y)

    options = {"rounds": 1, "local_steps": 1}
    subclass = wafl.fit(network(), CLASSES, wafl.FedAvg(), loss=Tenfold(), learning_rate=0.01, **options)
    plain = wafl.fit(network(), CLASSES, wafl.FedAvg(), loss=ten_times, learning_rate=0.01, **options)
    for name, value in plain.params.items():
        torch.testing.assert_close(subclass.params[name], value)
    assert spelled(subclass.loss) is None
