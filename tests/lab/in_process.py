"""Contests without processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wafl.lab.contest import floor, ours, plain
from wafl.lab.contest.contest import Contestant
from wafl.lab.contest.shared.handed import Train, Work

MODULES = {"ours": ours, "plain": plain, "floor": floor}


def in_this_process(each: Contestant, place: Path, threads: int | None) -> dict[str, Any]:
    """A turn as it would be in a process; ``broken`` fails, ``lazy`` trains a round less, ``alone`` has no clock."""
    work = Work.read(str(place))
    if each.name == "broken":
        return {"failed": "ImportError: no module named peer"}
    train: Train = MODULES[each.command[-1].rpartition(".")[2]].prepare(work)
    seconds = {"wafl": 2.0, "plain PyTorch": 6.0}.get(each.name, 1.0)
    cpu = None if each.name == "alone" else seconds
    params = train(work.rounds - (each.name == "lazy"))
    return {"startup": 1.0, "wall": 2 * seconds, "cpu": cpu, "peak_bytes": 2**20, "params": params}
