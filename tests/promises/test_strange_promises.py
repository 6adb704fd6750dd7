"""Certificates from strangers, sealed again after a change: refused in one line, before anything is computed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wafl
from wafl.promises.issue import Promise, whole_file

Content = dict[str, Any]

CHANGES: dict[str, Callable[[Content], Any]] = {
    "an overflowing radius": lambda c: c["certificates"][0].update(radius=1e300),
    "an overflowing gamma": lambda c: c["certificates"][0].update(gamma=1e300),
    "an overflowing weight": lambda c: c["clients"][0].update(weight=1e300),
    "an overflowing range": lambda c: c["certificates"][0]["sampling"].update(most=1e300),
    "no example": lambda c: c["clients"][0].update(examples=0),
    "more examples than a float": lambda c: c["clients"][0].update(examples=10**400),
    "a level of 0": lambda c: c["certificates"][0]["sampling"].update(level=0.0),
    "a negative level": lambda c: c["certificates"][0]["sampling"].update(level=-0.5),
    "a confidence below 0": lambda c: c["claim"].update(confidence=-5.0),
    "a negative tolerance": lambda c: c["certificates"][0].update(tolerance=-1.0),
    "no promise": lambda c: c["certificates"].clear(),
}


@pytest.fixture(scope="module")
def promise() -> Promise:
    rng = np.random.default_rng(0)
    pairs = [(rng.uniform(size=(20, 2)), np.arange(20) % 2) for _ in range(2)]
    clients = wafl.Federation.from_arrays(pairs, bounds=(0.0, 1.0))
    return wafl.issue(wafl.models.mlr(clients), clients, radii=[0.2], part="test", confidence=0.9)


@pytest.mark.parametrize("change", CHANGES)
def test_numbers_that_nobody_can_compute_with_are_refused(promise: Promise, change: str, tmp_path: Path) -> None:
    file, content = tmp_path / "certificate.json", json.loads(json.dumps(promise.content))
    file.write_bytes(whole_file(content, None))
    assert wafl.verify(file).ok
    CHANGES[change](content)
    file.write_bytes(whole_file(content, None))
    with pytest.raises(ValueError, match="is not a certificate, or was changed"):
        wafl.verify(file)


def test_a_file_that_is_too_large_or_never_ends_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "certificate.json"
    with file.open("wb") as sparse:
        sparse.truncate(2**40)
    with pytest.raises(ValueError, match=r"is not a certificate.*more than 256 MiB"):
        wafl.verify(file)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"is not a certificate.*not a plain file"):
        wafl.verify(tmp_path / "pipe")
