"""False files that a checker once did not call wrong, and models whose code fails while it checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wafl
from tests.promises.files import publish
from wafl.promises.promise import digest_of, whole_file

Content = dict[str, Any]


def a_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3))


def clients(dimensions: int = 2) -> wafl.Federation:
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(6, dimensions)), np.arange(6) % 3) for _ in range(2)]
    return wafl.Federation.from_arrays(pairs, test_fraction=0.0, names=["a", "b"])


@cache
def original() -> str:
    """Return what a file about ``a_model()`` and ``clients()`` states, as JSON."""
    return json.dumps(publish(a_model(), clients(), radii=[0.0, 0.5]).content)


def changed(folder: Path, change: Callable[[Content], Any]) -> Path:
    """Return a file about ``a_model()`` and ``clients()`` that was changed and sealed again."""
    stated = json.loads(original())
    change(stated)
    file = folder / "certificate.json"
    file.write_bytes(whole_file(stated, None))
    return file


def without_proof(model: nn.Module, value: float, **claim: Any) -> Callable[[Content], None]:
    """Return a change into estimates about a model, which are all this value."""

    def change(content: Content) -> None:
        content.update(attested="unknown", witnesses=[])
        content["claim"].update(model=digest_of(model), **claim)
        for row in content["claim"]["rows"]:
            row["value"] = value

    return change


@pytest.mark.parametrize("metric", ["loss", "error"])
def test_leaving_out_the_proof_of_a_model_that_has_one_hides_no_false_value(tmp_path: Path, metric: str) -> None:
    file = changed(tmp_path, without_proof(a_model(), 1e-6, metric=metric))
    checked = wafl.verify(file, model=a_model(), data=clients())
    assert (checked.verdict, [line.status for line in checked.lines[:3]]) == ("WRONG", ["recomputed", "wrong", "wrong"])
    assert wafl.verify(file, model=a_model(), data=clients().of_clients([1])).verdict == "WRONG"
    file = changed(tmp_path, without_proof(a_model(), 10.0 if metric == "loss" else 1.0, metric=metric))
    assert wafl.verify(file, model=a_model(), data=clients()).verdict == "ATTESTED"


def test_no_client_of_a_wrong_file_gets_a_better_verdict(tmp_path: Path) -> None:
    def halve(content: Content) -> None:
        content["claim"]["rows"][1]["value"] *= 0.5

    for data in (clients(), clients().of_clients([0]), None):
        checked = wafl.verify(changed(tmp_path, halve), model=None if data is None else a_model(), data=data)
        assert {checked.verdict, checked.verdict_of("a"), checked.verdict_of("b")} == {"WRONG"}


class Custom(nn.Module):
    """A layer and a function of its outputs, without a proof."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(2, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


@pytest.mark.parametrize("metric", ["loss", "error"])
def test_a_loss_that_is_not_a_number_is_at_most_nothing(tmp_path: Path, metric: str) -> None:
    torch.manual_seed(0)
    model = Custom(torch.log)
    file = changed(tmp_path, without_proof(model, 1.0, metric=metric))
    checked = wafl.verify(file, model=model, data=clients())
    assert checked.verdict == "WRONG"
    assert "the data reach inf" in checked.lines[1].why


def test_a_client_without_weight_hides_no_loss_of_others(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Custom(lambda outputs: outputs / (outputs.abs() < 100.0))
    far = [np.full((6, 2), 1e6), clients().train.of(0)[0].numpy()]
    data = wafl.Federation.from_arrays(
        [(x, np.arange(6) % 3) for x in far], test_fraction=0.0, names=["a", "b"]
    )  # fmt: skip

    def change(content: Content) -> None:
        without_proof(model, 1e-3)(content)
        for index, client in enumerate(content["claim"]["clients"]):
            client.update(weight=float(index), sha256=data.train.of_clients([index]).digest(statistics=True))

    assert wafl.verify(changed(tmp_path, change), model=model, data=data).verdict == "WRONG"


def fail(_: Tensor) -> Tensor:
    raise KeyError("key")


FAILING: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "a custom error": (lambda: Custom(fail), {}),
    "too few outputs": (lambda: Custom(lambda outputs: outputs[:, :2]), {}),
    "float32 inside": (lambda: nn.Sequential(Custom(Tensor.float), nn.Linear(3, 3)), {}),
    "inputs of another size": (lambda: Custom(Tensor.sin), {"data": clients(3)}),
}


@pytest.mark.parametrize("kind", FAILING)
def test_a_model_that_fails_on_the_data_is_one_clear_error(tmp_path: Path, kind: str) -> None:
    make, options = FAILING[kind]
    model = make()
    file = changed(tmp_path, without_proof(model, 1.0))
    with pytest.raises(ValueError, match=r"cannot be computed on these data .*: pass its data and its loss"):
        wafl.verify(file, model=model, data=options.get("data", clients()))


def test_a_margin_loss_of_an_extreme_temperature_proves_nothing(tmp_path: Path) -> None:
    file = changed(tmp_path, lambda _: None)
    assert wafl.verify(file, model=a_model(), data=clients(), loss="margin(0, 1e-300)").verdict == "WRONG"


@pytest.mark.parametrize("metric", ["loss", "error"])
def test_a_tiny_radius_can_be_published(tmp_path: Path, metric: str) -> None:
    certificate = publish(a_model(), clients(), radii=[1e-100, 0.5], metric=metric)
    certificate.save(tmp_path / "certificate.json")
    checked = wafl.verify(tmp_path / "certificate.json", model=a_model(), data=clients())
    assert checked.verdict == "PROVEN"
    assert list(certificate.values.values()) == sorted(certificate.values.values())
