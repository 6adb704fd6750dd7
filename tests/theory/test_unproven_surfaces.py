"""No surface shows a value of a model without a proof as certified.

The surfaces are tables, plain values, figures, pages, cards, badges, files and the checker's verdict. The tests of
``tests/cli/test_estimates.py`` are about commands and studies, and ``tests/flower/test_grid.py`` about nodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wafl
from wafl.promises.promise import digest_of
from wafl.promises.verify import check
from wafl.sklearn import WassersteinClassifier
from wafl.theory.certificates.certificate import Certificates, plot_certificates
from wafl.theory.summary import promised

RADII = [0.0, 0.1]


class Clamped(nn.Module):
    """A linear model with an operation that has no proof and changes nothing."""

    def __init__(self, lipschitz: float | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(3, 2)
        if lipschitz is not None:
            self.lipschitz = lipschitz

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.clamp_max(1e9))


class Sly(Clamped):
    """A model that computes something else than what is traced."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x) * 10.0 if type(x) is Tensor else self.last(x)


class Unrecorded(Clamped):
    """A model whose outputs have no gradient."""

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "an unknown operation": (Clamped, {}),
    "a claimed curvature": (Clamped, {"curvature": 5.0}),
    "a declared constant": (lambda: Clamped(5.0), {}),
    "a declared constant, error rate": (lambda: Clamped(5.0), {"metric": "error"}),
    "a declared constant, power 1": (lambda: Clamped(5.0), {"power": 1}),
    "something else than the graph": (Sly, {}),
}


@pytest.fixture(autouse=True)
def nothing_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """An estimate is one whatever a search finds, and searching takes most of the time; too much refutes nothing."""
    for name in ("largest_slope", "largest_curvature"):
        monkeypatch.setattr(import_module("wafl.theory.constants.estimates"), name, lambda *_: 100.0)


def clients(bounds: tuple[float, float] | None = (0.0, 1.0)) -> wafl.Federation:
    rng = np.random.default_rng(0)
    pairs = [(x := rng.random((12, 3)), (x.sum(1) > 1.5).astype(np.int64)) for _ in range(3)]
    return wafl.Federation.from_arrays(pairs, bounds=bounds, num_classes=2)


def figure(result: Certificates) -> str:
    (axes,) = plot_certificates({"run": result}).axes
    texts = [axes.get_title(), axes.get_xlabel(), axes.get_ylabel()]
    return "\n".join([*texts, *(text.get_text() for text in axes.get_legend().get_texts())])


def names(value: Any) -> list[str]:
    """Return the names of a table of plain values whose values are not None, and all texts."""
    if isinstance(value, dict):
        return [name for key, each in value.items() if each is not None for name in (key, *names(each))]
    if isinstance(value, list | tuple):
        return [name for each in value for name in names(each)]
    return [value] if isinstance(value, str) else []


def card(result: Certificates, folder: Path) -> str:
    source = result.source
    assert source is not None
    assert isinstance(source.model, nn.Module)
    run = wafl.fit(source.model, source.clients, wafl.FedAvg(), rounds=1, local_steps=1, learning_rate=1e-9)
    home = run.card(folder / "card", certificate=result.published)
    return (home.parent / "badge.svg").read_text() + home.read_text().partition("certificate.json")[0]


def shown(result: Certificates, folder: Path) -> dict[str, str]:
    """Return the text of each surface that has numbers of a certificate."""
    page = result.report(folder / "page.html").read_text(encoding="utf-8").rpartition("<body")[2]
    walk = result.walk("run")
    return {
        "print": f"{result}\n{result!r}",
        "json": "\n".join(names(json.loads(json.dumps(result.to_json())))),
        "figure": figure(result),
        "slider": "\n".join([*(name for stop in walk.stops for name in stop.numbers), str(walk.figure)]),
        "page": page,
        "card and badge": card(result, folder),
        "words of the file": str(result.published),
        "print with what is published": str(result),
    }


@pytest.mark.parametrize("name", CASES)
def test_no_surface_calls_a_value_without_a_proof_certified(name: str, tmp_path: Path) -> None:
    make, options = CASES[name]
    result = wafl.certify(make(), clients(), radii=RADII, **options)
    assert not result.certifies
    assert [row.certified for row in result.rows] == [None, None]
    for surface, text in shown(result, tmp_path).items():
        assert "certified" not in text.lower(), surface
        assert any(word in text.lower() for word in ("estimate", "attested", "not proven")), surface
    page = result.save(tmp_path / "c.json")
    assert "Nothing here is proven, because" in " ".join(page.read_text().split())
    checked = wafl.verify(tmp_path / "c.json", model=make(), data=clients())
    assert checked.verdict == "ATTESTED"
    assert {line.status for line in checked.lines} <= {"attested", "noted"}
    assert not checked.promise.proven


def test_the_same_surfaces_call_proven_values_certified(tmp_path: Path) -> None:
    torch.manual_seed(0)
    result = wafl.certify(nn.Linear(3, 2), clients(), radii=RADII)
    texts = shown(result, tmp_path)
    texts.pop("words of the file")
    for surface, text in texts.items():
        assert "certified" in text.lower(), surface
        assert "not proven" not in text.lower(), surface


@pytest.mark.parametrize("name", CASES)
def test_statements_about_others_are_estimates_too(name: str) -> None:
    make, options = CASES[name]
    seen, unseen = clients(bounds=None).hold_out(0.4)
    if "power" not in options:
        moved = wafl.next_client(make(), seen, unseen, radius=0.1, **options)
        assert not moved.proven
        assert str(moved).startswith("Not proven: ")
        assert "certified" not in str(moved)
        with pytest.raises(wafl.PreconditionError, match="saved only with a proof"):
            moved.publish()
    run = wafl.fit(make(), seen, wafl.FedAvg(), rounds=1, local_steps=1, learning_rate=1e-9)
    result = wafl.certify(run, seen, radii=[0.1], **options)
    assert [each.value for each in promised(run, seen, unseen, result, 0)] == [None] * 4


def test_an_estimator_certifies_what_is_proven() -> None:
    x, y = np.random.default_rng(0).random((20, 3)), np.arange(20) % 2
    assert WassersteinClassifier(radius=0.1).fit(x, y).certify([0.1]).certifies
    fitted = WassersteinClassifier(radius=0.1).fit(x, y)
    fitted.model_ = Clamped().double()
    result = fitted.certify([0.1])
    assert (result.certifies, result[0].certified) == (False, None)


def test_a_model_without_a_gradient_is_attested_and_still_refuted_by_the_data() -> None:
    result = wafl.certify(Clamped(), clients(), radii=RADII)
    promise, parts = result.published, result.published.parts
    for factor, verdict in ((1.0, "ATTESTED"), (1e-3, "WRONG")):
        rows = tuple(replace(row, value=factor * row.value) for row in parts.claim.rows)
        claim = replace(parts.claim, model=digest_of(Unrecorded()), rows=rows)
        changed = replace(promise, parts=replace(parts, claim=claim))
        assert check(changed, Unrecorded(), clients(), None).verdict == verdict
