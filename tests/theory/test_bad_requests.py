"""Requests that cannot be met are refused with a value and a remedy before a search starts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import wafl
from wafl.theory.certificates import publish

RNG = np.random.default_rng(0)
CLIENTS = wafl.Federation.from_arrays([(RNG.normal(size=(8, 3)), np.arange(8) % 2) for _ in range(4)], num_classes=2)
SEEN, UNSEEN = CLIENTS.hold_out(0.5)


class Locked(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 2)
        self.lock = threading.Lock()


class Rude(nn.Linear):
    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        raise RuntimeError("no copies")


def spectral() -> nn.Module:
    model = nn.utils.spectral_norm(nn.Linear(3, 2))
    model(torch.ones(1, 3))
    return model


UNCOPIED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "old weight_norm": (lambda: nn.utils.weight_norm(nn.Linear(3, 2)), "use torch.nn.utils.parametrizations"),
    "old spectral_norm in training": (spectral, "use torch.nn.utils.parametrizations"),
    "a lock": (Locked, "Locked cannot be copied .*lock"),
    "a custom error": (lambda: Rude(3, 2), r"Rude cannot be copied \(no copies\)"),
    "a lazy layer": (lambda: nn.LazyLinear(2), "LazyLinear has no parameters yet: call it once with an example"),
}


@pytest.fixture(scope="module")
def certificate() -> wafl.Certificates:
    return wafl.certify(nn.Linear(3, 2), CLIENTS, radii=[0.1], achieved=False)


@pytest.fixture(scope="module")
def others(certificate: wafl.Certificates) -> tuple[Any, ...]:
    """Whatever else can be saved as a file; the last one has no page in words."""
    return (
        wafl.next_client(nn.Linear(3, 2), SEEN, UNSEEN),
        certificate.published,
        wafl.prediction_sets(nn.Linear(3, 2), CLIENTS, coverage=0.5, confidence=0.5),
    )


@pytest.mark.parametrize("name", UNCOPIED)
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_a_model_that_cannot_be_copied_has_a_remedy(name: str, certificate: wafl.Certificates, tmp_path: Path) -> None:
    make, message = UNCOPIED[name]
    certificate.save(tmp_path / "c.json")
    for ask in (
        lambda: wafl.certify(make(), CLIENTS, radii=[0.1]),
        lambda: wafl.next_client(make(), SEEN, UNSEEN, radius=0.1),
        lambda: wafl.prediction_sets(make(), CLIENTS, coverage=0.5, confidence=0.5),
        lambda: wafl.verify(tmp_path / "c.json", model=make(), data=CLIENTS),
    ):
        with pytest.raises(ValueError, match=message):
            ask()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radii": [-1]}, r"radius=-1\.0 must be 0 or lie in"),
        ({"radii": None}, r"radii=None must be a list of numbers, such as \[0\.1, 0\.5\]"),
        ({"radii": ["a"]}, r"radii=\['a'\] must be a list of numbers"),
        ({"gap": "a"}, r"gap='a' must be a number and lie in \[1e-06, 1\]"),
        ({"power": "2"}, "power='2' must be 1 or 2: give a number"),
        ({"confidence": "a", "split": "test"}, "confidence='a' must be a number and lie in"),
        ({"curvature": "a"}, "curvature='a' must be a number"),
        ({"label_cost": "a"}, "label_cost='a' must be a number and be positive; inf keeps labels fixed"),
        ({"device": "gpu"}, "device='gpu' is not a device: use 'cpu' or 'cuda'"),
    ],
)
def test_what_is_asked_is_checked_before_a_search(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wafl.theory.certificates.certify.Mixture.of", lambda *_: pytest.fail("it began"))
    with pytest.raises(ValueError, match=message):
        wafl.certify(nn.Linear(3, 2), CLIENTS, **{"radii": [0.1], **options})


PLACES = {
    "x.md": "x.md is the name of the page in words: name the certificate x.json",
    "nowhere/x.json": "nowhere is not a folder: make it first",
    "file/x.json": "file is not a folder: make it first",
    ".": r"is a folder: give the name of a file, such as name\.json",
}


@pytest.mark.parametrize("place", PLACES)
def test_where_a_file_goes_is_checked_before_it_is_made(
    place: str,
    certificate: wafl.Certificates,
    others: tuple[Any, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    for name in ("publish", "publish_next_client"):
        monkeypatch.setattr(publish, name, lambda *_: pytest.fail("it began"))
    for result in (certificate, *(others[:-1] if place == "x.md" else others)):
        with pytest.raises(ValueError, match=PLACES[place]):
            result.save(place)
    for key in ("nope.pem", "."):
        with pytest.raises(ValueError, match=f"^{key} is not a file: pass the file of a private key; openssl"):
            certificate.save("c.json", key=key)
    assert {each.name for each in Path().iterdir()} == {"file"}


@pytest.mark.parametrize(
    "content", ["{}", "[]", "3", "", "hello", '{"format": []}', '{"format": 3}', '{"format": "3"}']
)
def test_json_that_is_no_certificate_is_named(content: str, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    for ask in (lambda: wafl.verify(file), lambda: wafl.audit(file, nn.Linear(3, 2), CLIENTS)):
        with pytest.raises(ValueError, match=r"other\.json is not a certificate, or was changed: ") as error:
            ask()
        assert "format None" not in str(error.value)
        if content in ("{}", '{"format": []}', '{"format": "3"}'):
            assert "pass a file that wafl certify or certificate.save wrote" in str(error.value)
    with pytest.raises(FileNotFoundError, match=r"nothing\.json is not a file: pass a certificate"):
        wafl.verify(tmp_path / "nothing.json")


@pytest.mark.parametrize("layers", [1, 3])
def test_weights_that_are_no_numbers_are_refused(layers: int) -> None:
    model = nn.Sequential(*[nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)][3 - layers :])
    model[0].weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match="the model gives NaN or infinity for the first example, before any training"):
        wafl.certify(model, CLIENTS, radii=[0.1])


def test_a_client_without_a_weight_changes_nothing_whatever_it_loses() -> None:
    x, y = RNG.normal(size=(8, 3)), np.arange(8) % 2
    model = nn.Linear(3, 2).double()
    model.weight.data.mul_(1e10)
    far = wafl.Federation.from_arrays([(x, y), (1e300 * x, y)], num_classes=2, test_fraction=0.0)
    weights = wafl.weights.fixed([1.0, 0.0])
    both = wafl.certify(model, far, radii=[0.0, 0.1], client_weights=weights, achieved=False)
    alone = wafl.certify(model, far.of_clients([0]), radii=[0.0, 0.1], achieved=False)
    for row, twin in zip(both.rows, alone.rows, strict=True):
        assert row.certified == pytest.approx(twin.certified, rel=1e-9)


@pytest.mark.parametrize("last", [nn.Identity(), nn.LayerNorm(2)], ids=str)
def test_a_model_that_changed_after_it_was_certified_is_not_saved(
    last: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("largest_slope", "largest_curvature"):
        monkeypatch.setattr(import_module("wafl.theory.constants.estimates"), name, lambda *_: 10.0)
    model = nn.Sequential(nn.Linear(3, 2), last, nn.Linear(2, 2))
    certificate = wafl.certify(model, CLIENTS, radii=[0.1], achieved=False)
    model[0].weight.data.mul_(2.0)
    with pytest.raises(ValueError, match="the model has changed since it was certified: certify it again"):
        certificate.save(tmp_path / "c.json")
    model[0].weight.data.div_(2.0)
    certificate.save(tmp_path / "c.json")


def test_statements_about_a_model_that_changed_are_not_saved(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    statements = wafl.next_client(model, SEEN, UNSEEN)
    model.weight.data.mul_(2.0)
    with pytest.raises(ValueError, match="the model has changed since it was certified: certify it again"):
        statements.save(tmp_path / "n.json", own_sampling=False)
