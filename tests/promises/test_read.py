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
from tests.promises.files import publish
from wafl.promises.promise import Promise, whole_file

Content = dict[str, Any]

CHANGES: dict[str, Callable[[Content], Any]] = {
    "an overflowing radius": lambda c: c["claim"]["rows"][0].update(radius=1e300),
    "a radius whose square is 0": lambda c: c["claim"]["rows"][0].update(radius=1e-170),
    "a gamma whose square is 0": lambda c: c["witnesses"][0].update(gamma=1e-170),
    "an overflowing gamma": lambda c: c["witnesses"][0].update(gamma=1e300),
    "a weight above 1": lambda c: c["claim"]["clients"][0].update(weight=1e300),
    "weights that sum to less than 1": lambda c: c["claim"]["clients"][0].update(weight=0.25),
    "a gamma of 0": lambda c: c["witnesses"][0].update(gamma=0.0),
    "no gamma": lambda c: c["witnesses"][0].update(gamma=None),
    "a gamma that is not a number": lambda c: c["witnesses"][0].update(gamma=float("nan")),
    "no example": lambda c: c["claim"]["clients"][0].update(examples=0),
    "more examples than a float": lambda c: c["claim"]["clients"][0].update(examples=10**400),
    "a number of examples that is a truth": lambda c: c["claim"]["clients"][0].update(examples=True),
    "a number of examples with a point": lambda c: c["claim"]["clients"][0].update(examples=5.0),
    "a radius without a point": lambda c: c["claim"]["rows"][0].update(radius=1),
    "a radius in words": lambda c: c["claim"]["rows"][0].update(radius="0.2"),
    "a negative radius": lambda c: c["claim"]["rows"][0].update(radius=-0.2),
    "a radius below 0 by its sign": lambda c: c["claim"]["rows"][0].update(radius=-0.0),
    "a power that is a truth": lambda c: c["claim"].update(power=True),
    "a confidence below 0": lambda c: c["claim"].update(confidence=-5.0),
    "a confidence about training": lambda c: c["claim"].update(part="train"),
    "no confidence for its draws": lambda c: c["claim"].update(confidence=None),
    "an unknown norm": lambda c: c["claim"].update(norm="l3"),
    "an unknown field": lambda c: c["claim"].update(constants={"L_z": 0.0}),
    "an unknown table": lambda c: c.update(statement=["It is safe."]),
    "a missing field": lambda c: c["claim"].pop("part"),
    "a client twice": lambda c: double(c["claim"]["clients"]),
    "two clients of one name": lambda c: c["claim"]["clients"][1].update(name=c["claim"]["clients"][0]["name"]),
    "a name that looks like a verdict": lambda c: c["claim"]["clients"][0].update(name="a\nradius 9  recomputed"),
    "a name that turns its line around": lambda c: c["claim"]["clients"][0].update(name="a\u202e"),
    "half a letter": lambda c: c["claim"]["clients"][0].update(name="\ud800"),
    "a date on two lines": lambda c: c.update(issued=c["issued"].replace("T", "\n")),
    "a radius twice": lambda c: double(c["claim"]["rows"]),
    "a witness twice": lambda c: double(c["witnesses"]),
    "no bet": lambda c: c["witnesses"][0]["draws"]["bets"].clear(),
    "a stake of no client": lambda c: double(c["witnesses"][0]["draws"]["paid"]),
    "no stake": lambda c: c["witnesses"][0]["draws"]["paid"].clear(),
    "a negative payment": lambda c: c["witnesses"][0]["draws"]["paid"][0].__setitem__(0, -1.0),
    "a number for no client": lambda c: double(c["witnesses"][0]["means"]),
    "a digest of another kind": lambda c: c["claim"].update(model="md5"),
    "a date in words": lambda c: c.update(issued="by a trusted authority"),
    "versions of something": lambda c: c.update(versions={"certified": "by everyone"}),
    "no promise": lambda c: c["claim"]["rows"].clear(),
    "no client": lambda c: c["claim"]["clients"].clear(),
}


def double(things: list[Any]) -> None:
    things.append(things[0])


@pytest.fixture(scope="module")
def promise() -> Promise:
    rng = np.random.default_rng(0)
    pairs = [(rng.uniform(size=(20, 2)), np.arange(20) % 2) for _ in range(2)]
    clients = wafl.Federation.from_arrays(pairs, bounds=(0.0, 1.0))
    return publish(wafl.models.mlr(clients), clients, radii=[0.2], split="test", confidence=0.9)


@pytest.mark.parametrize("change", CHANGES)
def test_numbers_that_nobody_can_compute_with_are_refused(promise: Promise, change: str, tmp_path: Path) -> None:
    file, content = tmp_path / "certificate.json", json.loads(json.dumps(promise.content))
    file.write_bytes(whole_file(content, None))
    assert wafl.verify(file).ok
    CHANGES[change](content)
    try:
        file.write_bytes(whole_file(content, None))
    except ValueError:  # strict JSON has no such number, and Python's does
        file.write_text(json.dumps(content, indent=1) + "\n")
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
