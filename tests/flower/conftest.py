"""A stage for studies on a grid of nodes: clients, a folder, and a clock without waiting."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.oracles import flower_fakes as fakes
from wafl.config.read import parse_experiment
from wafl.flower.node.work import Node
from wafl.studies.study import Study

SIZES = (3, 8, 6, 5, 10, 2)
UNEVEN = [["c03"], ["c00", "c05", "c01"], ["c02", "c04"]]
"""Which clients each of three nodes holds."""
Logged = Callable[[], list[str]]


@dataclass
class Stage:
    """Clients in a folder, and what trains their models: nodes on a grid, or this process."""

    clock: fakes.Clock
    root: Path
    clients: Mapping[str, fakes.Client]

    @property
    def study(self) -> Path:
        return self.root / "study"

    def grid(
        self, experiment: Mapping[str, Any], layout: Sequence[Sequence[str]] = UNEVEN, node: type[Node] = Node
    ) -> fakes.Grid:
        return fakes.make_grid(self.clock, self.root, self.clients, layout, experiment, node=node)

    def train(self, experiment: Mapping[str, Any], grid: fakes.Grid | None = None) -> fakes.Grid:
        """Train the study on this grid, or on a new one."""
        grid = grid or self.grid(experiment)
        fakes.train(grid, experiment, self.study)
        return grid

    def embedded(self, experiment: Mapping[str, Any], folder: str = "embedded") -> Path:
        """The same study in this process."""
        return embedded(self.clients, experiment, self.root / folder)


def embedded(clients: Mapping[str, fakes.Client], experiment: Mapping[str, Any], folder: Path) -> Path:
    """The folder of a study in this process."""
    fakes.EVERYONE.append(fakes.federation(clients))
    try:
        Study.create(parse_experiment({**experiment, "engine": "embedded"}, "here"), folder).run()
    finally:
        fakes.EVERYONE.pop()
    return folder


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> fakes.Clock:
    return fakes.virtual(monkeypatch)


@pytest.fixture
def stage(clock: fakes.Clock, tmp_path: Path) -> Stage:
    return Stage(clock, tmp_path, fakes.make_clients(SIZES))


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[Logged]:
    """The warnings so far, each once: Flower's logger may hand them on, or not."""

    def messages() -> list[str]:
        result = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        return list(dict.fromkeys(result))

    logging.getLogger("flwr").addHandler(caplog.handler)
    yield messages
    logging.getLogger("flwr").removeHandler(caplog.handler)
