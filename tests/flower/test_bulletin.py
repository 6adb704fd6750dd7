"""What the server writes about its nodes while it works, against the books of the grid in between."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from flwr.app import RecordDict
from rich.console import Console

from tests.oracles import flower_fakes as fakes
from wafl.base.errors import FolderError, TooFewRepliesError
from wafl.cli.tables import nodes
from wafl.flower.server.bulletin import read_status

EXPERIMENT: dict[str, Any] = {
    "methods": [{"method": "FedAvg"}],
    "schedule": {"rounds": 3, "local_epochs": 1, "learning_rate": 0.1},
    "flower": {"nodes": 2, "min_nodes": 2, "wait": 5.0, "round_timeout": 20.0},
}
LAYOUT = (["c00", "c01"], ["c02"])


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> fakes.Grid:
    made = fakes.make_grid(fakes.virtual(monkeypatch), tmp_path, fakes.make_clients((3, 4, 5)), LAYOUT, EXPERIMENT)
    made.hosts[0].node.name = "north"
    return made


def size(content: RecordDict) -> int:
    return sum(record.count_bytes() for record in content.values())


def test_nodes_are_there_by_name_with_every_byte_and_reply(grid: fakes.Grid, tmp_path: Path) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    fakes.train(grid, EXPERIMENT, tmp_path / "study")
    status = read_status(tmp_path / "study")
    assert (status["state"], status["round"], status["left_out"]) == ("finished", 2, {})
    assert [(node["id"], node["name"], node["clients"]) for node in status["nodes"]] == [
        (str(host.number), name, list(names))
        for host, name, names in zip(grid.hosts, ("north", ""), LAYOUT, strict=True)
    ]
    for host, node in zip(grid.hosts, status["nodes"], strict=True):
        mine = [seen for seen in grid.seen if seen.node == host.number]
        assert node["replies"] == len(mine) >= 4
        assert node["bytes_sent"] == sum(size(seen.query) for seen in mine)
        assert node["bytes_received"] == sum(size(seen.reply) for seen in mine)
        assert (node["present"], node["failures"], node["last_failure"]) == (True, 0, "")
        for when in ("last_seen", "last_reply"):
            assert before <= datetime.fromisoformat(node[when]) <= datetime.now(UTC)


def test_a_node_that_fails_is_named_with_its_clients_and_the_reason(grid: fakes.Grid, tmp_path: Path) -> None:
    grid.hosts[1].fate = lambda kind, at: fakes.HANG if kind == "train" and at == 1 else None
    fakes.train(grid, EXPERIMENT, tmp_path / "study")
    status = read_status(tmp_path / "study")
    node = status["nodes"][1]
    assert node["failures"] == 1
    assert "20 s" in node["last_failure"] or "unavailable" in node["last_failure"]
    about = status["left_out"]["c02"]
    assert (about["rounds"], about["last"]) == (1, 1)
    assert about["why"]
    console = Console(width=160, record=True)
    console.print(nodes(status))
    shown = console.export_text()
    assert "finished, FedAvg" in shown
    assert "north" in shown
    assert f"{node['id']} has failed, most recently: {node['last_failure']}" in shown
    assert "c02 was left out of 1 rounds, at last of round 1" in shown


def test_a_study_that_ends_early_says_so_and_who_is_gone(grid: fakes.Grid, tmp_path: Path) -> None:
    grid.hosts[1].fate = lambda kind, at: fakes.GONE if kind == "train" and at == 1 else None
    grid.hosts[0].fate = grid.hosts[1].fate
    with pytest.raises(TooFewRepliesError):
        fakes.train(grid, EXPERIMENT, tmp_path / "study")
    status = read_status(tmp_path / "study")
    assert (status["state"], status["round"]) == ("failed", 0)
    assert [node["present"] for node in status["nodes"]] == [False, False]
    assert [node["clients"] for node in status["nodes"]] == [list(names) for names in LAYOUT]


def test_a_study_that_is_stopped_says_so(grid: fakes.Grid, tmp_path: Path) -> None:
    def stop(kind: str, at: int | None) -> None:
        if at == 1:
            raise KeyboardInterrupt

    grid.before_push = stop
    with pytest.raises(KeyboardInterrupt):
        fakes.train(grid, EXPERIMENT, tmp_path / "study")
    status = read_status(tmp_path / "study")
    assert (status["state"], status["round"]) == ("interrupted", 0)
    assert [node["present"] for node in status["nodes"]] == [True, True]


def test_a_full_disk_does_not_end_a_training_by_this_file(
    grid: fakes.Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("wafl.flower.server.bulletin.write_whole", full)
    fakes.train(grid, EXPERIMENT, tmp_path / "study")
    assert not (tmp_path / "study" / "nodes.json").exists()
    with pytest.raises(FolderError, match=r"has no nodes\.json: only a study with clients on Flower's nodes"):
        read_status(tmp_path / "study")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda status: status.pop("nodes"), "nodes is missing"),
        (lambda status: status["nodes"][0].update(replies="many"), "nodes.0.replies"),
        (lambda status: status["left_out"].update(c00={"rounds": 1}), "left_out.c00.last is missing"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong(grid: fakes.Grid, tmp_path: Path, change: Any, what: str) -> None:
    grid.hosts[0].node.name = "\x1b[2J"
    fakes.train(grid, EXPERIMENT, tmp_path / "study")
    status = read_status(tmp_path / "study")
    console = Console(width=160, record=True)
    console.print(nodes(status))
    assert "?[2J" in console.export_text(), "names are shown, and obeyed by no terminal"
    change(status)
    (tmp_path / "study" / "nodes.json").write_text(json.dumps(status))
    with pytest.raises(FolderError, match=what):
        read_status(tmp_path / "study")
