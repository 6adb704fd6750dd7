"""A study whose clients are on nodes that Flower simulates on this machine."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wafl.core.errors import TooFewRepliesError
from wafl.core.extras import require
from wafl.core.signals import stopped_by_signals
from wafl.flower.ops.app import write_app
from wafl.flower.ops.loopback import Loopback
from wafl.runs.study import Study

PAUSE = 0.5
Show = Callable[[str, int], None]
"""Called with the name of a method and how many rounds of all its runs are done."""


def simulate(study: Study, show: Show | None = None) -> dict[str, Any]:
    """Run the study in a Flower simulation; returns what ``results.json`` holds.

    The server works in the study's folder: if a simulation ends early, what is done is kept, and can be resumed.
    """
    require("ray", extra="flower", what="engine = 'flower-sim'")
    experiment, folder = study.plan.experiment, study.folder
    nodes, clients = experiment.flower.nodes, study.plan.clients.roster.num_clients
    if nodes > clients:
        raise ValueError(f"flower.nodes={nodes} is larger than the number of clients, {clients}: lower it")
    place = folder.path.resolve() / "flower"
    shutil.rmtree(place / "app", ignore_errors=True)
    source = folder.read_about().get("source")
    write_app(place / "app", experiment, None if source is None else Path(source))
    pending = [entry.name for entry in study.pending()]
    state = {"WAFL_STATE": str(folder.checkpoint.resolve() / "nodes")}
    with stopped_by_signals(), Loopback(place, simulation=True, environment=state) as loopback:
        flower_run = loopback.submit(
            place / "app",
            {"folder": str(folder.path.resolve())},
            {"num-supernodes": nodes, "client-resources-num-cpus": 1},
        )
        while not flower_run.done():
            _report(study, pending, show)
            time.sleep(PAUSE)
        status = flower_run.wait(60.0)
        _report(study, pending, show)
        if status != "finished:completed":
            said = [line for line in flower_run.log().splitlines() if "Error: " in line]
            why = said[-1].partition("Error: ")[2] if said else f"see {place}"
            raise TooFewRepliesError(f"the simulation ended as {status.removeprefix('finished:')}: {why}")
    return folder.read_results()


def _report(study: Study, methods: Sequence[str], show: Show | None) -> None:
    """Show how many rounds of each method are done, by the lines of the metrics."""
    if show is None or not study.folder.metrics.exists():
        return
    lines = study.folder.metrics.read_text().splitlines()
    for name in methods:
        done = sum(f'{{"method": "{name}"' in line for line in lines)
        if done:
            show(name, done)
