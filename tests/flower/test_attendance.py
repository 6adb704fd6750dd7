"""Who took part: a simulation waits for everybody, a deployment says who is missing, and results record it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.flower.conftest import Logged, Stage
from tests.oracles import flower_fakes as fakes
from tests.oracles.flower_fakes import HANG, Clock
from wafl.base.errors import TooFewRepliesError
from wafl.cli.tables import comparison
from wafl.config.experiment import Flower
from wafl.config.read import parse_experiment
from wafl.flower.app import server
from wafl.flower.node import site
from wafl.flower.node.refusals import refusal
from wafl.flower.node.work import Node
from wafl.flower.ops.app import _for_everyone
from wafl.flower.server.census import Census
from wafl.flower.server.exchange import Post
from wafl.flower.wire.run_config import OWN
from wafl.studies.folder import StudyFolder
from wafl.train.clients import Roster
from wafl.train.trust.caps import Caps

LAYOUT = [["c00"], ["c01", "c02", "c03"], ["c04", "c05"]]
EXPERIMENT: dict[str, Any] = {
    "name": "study",
    "data": {"source": "tests.oracles.flower_fakes:everyone"},
    "schedule": {"rounds": 3, "local_steps": 1, "batch_size": 2, "learning_rate": 0.1},
    "attack": {"kind": "none"},
    "flower": {"nodes": 3, "wait": 5.0, "round_timeout": 20.0},
    "methods": [{"method": "FedAvg"}],
}


@pytest.fixture
def grid(stage: Stage) -> fakes.Grid:
    return stage.grid(EXPERIMENT, LAYOUT)


def census(grid: fakes.Grid, known: Roster | None = None, **settings: Any) -> Census:
    chosen = Flower(**{"nodes": 3, "min_nodes": 3, "wait": 5.0, **settings})
    return Census(Post(grid), chosen, False, known, caps=Caps(**fakes.BELIEVED))  # type: ignore[arg-type]


def test_a_server_that_needs_every_node_names_the_clients_that_are_missing(grid: fakes.Grid) -> None:
    everyone = census(grid).gather()
    grid.hosts[1].here = False
    grid.hosts[2].fate = lambda *_: HANG
    with pytest.raises(TooFewRepliesError) as caught:
        census(grid, everyone).gather()
    text = str(caught.value)
    assert "1 nodes with usable data connected within 5 s, 3 are needed" in text
    assert "no node holds c01, c02, c03, c04, c05" in text
    assert f"node {grid.hosts[2].number}: " in text


def test_the_nodes_that_are_needed_are_waited_for_as_long_as_they_keep_coming(grid: fakes.Grid, clock: Clock) -> None:
    """Three nodes, four seconds apart, with a patience of five."""
    for index, host in enumerate(grid.hosts):
        host.fate = lambda *_, index=index: 4.0 * (index + 1)  # type: ignore[misc]
    assert census(grid).gather().num_clients == 6
    assert 12.0 <= clock.now <= 13.0


def test_nodes_that_cannot_take_part_are_not_waited_for(grid: fakes.Grid, clock: Clock) -> None:
    for host in grid.hosts[1:]:
        host.fate = lambda *_: lambda _: refusal("setup", "it cannot open its data; its own log says why")
    with pytest.raises(TooFewRepliesError, match=r"node 10: it cannot open its data; its own log says why \(setup\)"):
        census(grid).gather()
    assert clock.now < 1.0


def test_results_and_tables_say_who_was_missing(grid: fakes.Grid, stage: Stage, logged: Logged) -> None:
    """One node never comes, another does not answer in round 1 and for the test; in round 2 it is not asked."""
    grid.hosts[0].here = False
    grid.hosts[2].fate = lambda kind, at: HANG if at == 1 or kind == "evaluate.test" else None
    stage.train(EXPERIMENT, grid)
    results = StudyFolder(stage.study).read_results()
    row = results["methods"]["FedAvg"]
    assert "missing: 2 of 3 nodes are here" in results["clients"]
    assert row["left_out"] == {name: {"rounds": 2, "why": "no reply in 20 s from node 17"} for name in ("c04", "c05")}
    assert row["untested"] == ["c04", "c05"]
    assert {"missing: 2 of 3 nodes are here", "left out: FedAvg: not tested: c04, c05"} <= set(logged())
    shown = [str(part) for part in comparison(results).renderables[1:]]
    assert shown[0].endswith(
        "FedAvg: without c04 (2 rounds: no reply in 20 s from node 17), c05 (2 rounds: no reply in 20 s from node 17)"
    )


def test_with_few_nodes_at_once_the_numbers_are_the_same_and_no_more_have_a_message(
    grid: fakes.Grid, stage: Stage
) -> None:
    stage.train(EXPERIMENT, grid)
    busy: list[int] = []
    one = {**EXPERIMENT, "flower": {**EXPERIMENT["flower"], "at_once": 1}}
    again = replace(stage, root=stage.root / "again").grid(one, LAYOUT)
    push = again.push_messages
    again.push_messages = lambda messages: (list(push(messages)), busy.append(len(again.pending)))[0]  # type: ignore[method-assign]
    server.train(Post(again, 1), {**OWN, **fakes.flat(one), "folder": str(stage.root / "one")})  # type: ignore[arg-type]
    assert set(busy) == {1}
    params = [(stage.root / name / "fedavg" / "params.safetensors").read_bytes() for name in ("study", "one")]
    assert params[0] == params[1]


def test_the_names_of_classes_travel_if_nodes_agree_on_them(grid: fakes.Grid) -> None:
    def named(*names: tuple[str, ...]) -> tuple[str, ...] | None:
        for host, classes in zip(grid.hosts, names, strict=True):
            held = host.node.site
            host.node.site = replace(held, federation=replace(held.federation, classes=classes or None))
        return census(grid).gather().intake.classes

    well = ("healthy", "ill", "unknown")
    three = [host.node.site.federation.num_classes for host in grid.hosts]
    assert three.count(3) >= 2, "the clients of this test have three classes at most nodes"
    full = [well if count == 3 else () for count in three]
    assert named(*full) == well
    assert named((), (), ()) is None
    other = [
        ("ill", "healthy", "unknown") if position == three.index(3) else each for position, each in enumerate(full)
    ]
    assert named(*other) is None


def test_a_node_is_called_by_its_name_in_the_log(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = fakes.write(tmp_path / "data", fakes.make_clients((3, 4)))
    node = Node.of({"data": str(folder), "name": "north\x1b[2J", **fakes.ADMITTED}, fakes.flat(EXPERIMENT))
    grid = fakes.Grid(clock, [fakes.Host(5, node)])
    result = census(grid, nodes=1, min_nodes=1)
    result.gather()
    grid.hosts[0].here = False
    clock.now += 1.0
    with caplog.at_level("INFO", "flwr"):
        result.look()
    assert "node 5 (north?[2J) has left, and with it c00, c01" in caplog.text


def test_a_simulation_needs_all_nodes_and_all_replies_unless_the_experiment_tolerates_fewer() -> None:
    changed = _for_everyone(parse_experiment({**EXPERIMENT, "engine": "flower-sim"}, "here"))
    assert (changed.flower.min_nodes, changed.flower.wait, changed.flower.at_once) == (3, 300.0, 64)
    assert changed.tolerance is not None
    assert changed.tolerance.min_replies == 1.0
    options = {"tolerance": {"min_replies": 0.25}, "flower": {"nodes": 2, "wait": 900.0}}
    kept = _for_everyone(parse_experiment({**EXPERIMENT, **options, "engine": "flower-sim"}, "here"))
    assert kept.tolerance is not None
    assert (kept.tolerance.min_replies, kept.flower.wait) == (0.25, 900.0)


def test_simulated_nodes_of_one_process_load_the_data_set_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[object] = []
    make = site.make_clients
    monkeypatch.setattr(site, "make_clients", lambda data: loads.append(data) or make(data))
    site._everyone.cache_clear()
    config = fakes.flat({**EXPERIMENT, "data": {"num_clients": 4, "iid": True}})
    held = [Node.of({"partition-id": part, "num-partitions": 4}, config).site for part in (0, 1, 2, 3, 0, 1)]
    assert [list(each.rows.values()) for each in held] == [[0], [1], [2], [3], [0], [1]]
    assert len(loads) == 1
    other = fakes.flat({**EXPERIMENT, "data": {"num_clients": 4, "iid": True, "seed": 1}})
    Node.of({"partition-id": 0, "num-partitions": 4}, other)
    assert len(loads) == 2
