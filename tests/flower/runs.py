"""Studies on a stage of nodes, and how two of them are compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import RecordDict

import wafl
from tests.oracles import flower_fakes as fakes
from tests.oracles.flower_fakes import Grid
from wafl.objectives import Objective
from wafl.studies.folder import StudyFolder
from wafl.studies.pages.progress import read_lines

FAKES = "tests.oracles.flower_fakes"


def remembers(method: wafl.Method) -> bool:
    """Whether clients keep something of the objective between rounds."""
    objective = method.objective
    return objective is not None and type(objective).initial_memory is not Objective.initial_memory


METHODS: list[dict[str, Any]] = [
    {"method": "AFL"},
    {"method": "CVaR", "alpha": [0.3, 0.6]},
    {"method": "DRFA", "prox": 2.0, "average_last": 1.0},
    {"method": "FedAdam", "rate": 0.05},
    {"method": "FedAvg"},
    *(
        {
            "method": "FedAvg",
            "name": f"fedavg-{kind}",
            "cohort": 5,
            "server": {"kind": kind, "optimizer": {"kind": "yogi"}},
        }
        for kind in ("geometric_median", "multi_krum")
    ),
    {"method": "FedPGM", "random_start": True, "steps": 3},
    {"method": "FedRobust", "step_size": 0.1},
    *({"method": name} for name in wafl.METHODS if remembers(wafl.METHODS[name]()) and name != "FedRobust"),
    {"method": f"{FAKES}:median", "cohort": 5},
    {"method": f"{FAKES}:remembering", "options": {"pull": 0.4, "gamma": [1.5, 3.0]}},
    {"method": "SCAFFOLD"},
    {"method": "WAFL", "gamma": [1.0, 2.5]},
    {"method": "WAFL", "name": "wafl-clipped", "clip_norm": [0.02, 5.0]},
    {"method": "WAFL", "name": "wafl-control", "local": {"kind": "control_variates"}, "momentum": 0.5},
    {"method": "WAFL", "name": "wafl-inf", "norm": "inf", "steps": 4},
    {"method": "WAFL", "name": "wafl-radius", "radius": 0.3, "momentum": 0.5, "server_learning_rate": 0.7},
]
BASE: dict[str, Any] = {
    "name": "study",
    "seeds": [3, 1],
    "data": {"source": f"{FAKES}:everyone"},
    "schedule": {"rounds": 2, "cohort": 4, "local_steps": 2, "batch_size": 2, "learning_rate": 0.1},
    "attack": {"steps": 2},
    "evaluation": {"attacked": [0.5]},
    "flower": {"nodes": 3, "wait": 5.0, "round_timeout": 20.0},
    "caps": fakes.BELIEVED,
    "methods": METHODS,
}
TESTED = ("test_loss", "accuracy")
QUICK = {**BASE, "seeds": [2], "attack": {"kind": "none"}, "evaluation": {}}
"""One seed, tested once."""


def only(*methods: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**QUICK, "methods": list(methods), **changes}


def metrics(folder: Path) -> list[dict[str, Any]]:
    rows = read_lines(StudyFolder(folder).metrics)
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def results(folder: Path) -> dict[str, Any]:
    """Results without times and without the description of the clients."""
    content = StudyFolder(folder).read_results()
    assert content["finished"]
    content["methods"] = {
        name: {key: value for key, value in row.items() if key != "seconds"} for name, row in content["methods"].items()
    }
    return {name: value for name, value in content.items() if name not in ("clients", "metrics")}


def params(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("params.safetensors")}


def assert_near(value: Any, other: Any) -> None:
    """Equal except for rounding."""
    if isinstance(value, dict):
        assert value.keys() == other.keys()
        for name in value:
            assert_near(value[name], other[name])
    elif isinstance(value, list):
        assert len(value) == len(other)
        for one, two in zip(value, other, strict=True):
            assert_near(one, two)
    elif isinstance(value, float):
        assert value == pytest.approx(other, rel=1e-12, abs=1e-12)
    else:
        assert value == other


def assert_same(folder: Path, other: Path) -> None:
    """Parameters and histories to the last bit; scores, which are means of means, up to rounding."""
    scores = [
        [{name: row.pop(name, None) for name in TESTED} for row in rows] for rows in (metrics(folder), metrics(other))
    ]
    assert_near(*scores)
    mine, theirs = ([{**row, **dict.fromkeys(TESTED)} for row in metrics(each)] for each in (folder, other))
    assert mine == theirs
    assert params(folder) == params(other)
    assert len(params(folder)) > 0
    assert_near(results(folder), results(other))


def keys(content: RecordDict) -> set[str]:
    return {f"{record}.{name}" for record in content for name in content[record]}


NEXT_CLIENT = {"reply.format", "reply.faults", "reply.reasons", "reply.sizes"} | {
    f"numbers.{name}" for name in ("values", "uppers", "above")
}
SPREAD = {"reply.format", "reply.sizes", "numbers.squares"}


def interrupt(grid: Grid, at: int) -> None:
    """Ctrl-C when the server sends its ``at``-th batch of work."""
    count = 0

    def before(kind: str, round: int | None) -> None:
        nonlocal count
        count += round is not None
        if round is not None and count == at:
            raise KeyboardInterrupt

    grid.before_push = before


def during(round: int, action: Callable[[], None]) -> Callable[[str, int | None], None]:
    """Do it once, when the work of that round is sent."""
    done: list[int] = []

    def before(kind: str, at: int | None) -> None:
        if at == round and not done:
            done.append(at)
            action()

    return before


def everyone(method: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """An experiment that asks all clients in all of its six rounds."""
    schedule = {"rounds": 6, "local_steps": 1, "batch_size": 2, "learning_rate": 0.1}
    return only(method, schedule=schedule, **changes)
