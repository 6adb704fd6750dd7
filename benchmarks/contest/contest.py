"""Run contestants in turns on the same work, each time in a new process; time them, and check their results."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.contest.shared.handed import Work
from benchmarks.contest.work import Size, make_work, opened
from wafl.report.plotting import COLORS
from wafl.studies.folder import provenance

ROOT = Path(__file__).parents[2]
SAME = 1e-4
"""How far a contestant's parameters may be from the plain loop's after the same batches."""
LIKE = 0.02
"""The allowed loss of accuracy below the plain loop's, after different batches."""
JUDGED = 4096
"""The most examples that accuracy is measured on: a CNN would need too long for all examples of 1,000 clients."""
OURS = "wafl"
Clock = Literal["wall", "cpu"]
CLOCKS: tuple[Clock, ...] = ("wall", "cpu")


@dataclass(frozen=True)
class Contestant:
    """A contestant: a name, the command that does the work, what it can do, and where.

    ``same_batches`` is True if it trains on the given batches.
    """

    name: str
    command: tuple[str, ...]
    kinds: tuple[str, ...] = ("fedavg", "cnn")
    same_batches: bool = True
    devices: tuple[str, ...] = ("cpu", "cuda")


def at_home(kind: str, device: str = "cpu") -> list[Contestant]:
    """Return the contestants that need only this package."""
    floor = {"floor": "floor"} if (kind, device) == ("fedavg", "cpu") else {}
    sides = {OURS: "ours", "plain PyTorch": "plain", **floor}
    python = (sys.executable, "-m")
    return [Contestant(name, (*python, f"benchmarks.contest.{module}"), (kind,)) for name, module in sides.items()]


def read_peers(folder: Path) -> tuple[list[Contestant], list[str]]:
    """Return the peers in a folder that have an environment, and the commands that make the missing ones."""
    peers: list[Contestant] = []
    missing: list[str] = []
    for script in sorted(folder.glob("*/peer.py")):
        home = script.parent
        python, about = home / ".venv" / "bin" / "python", json.loads((home / "peer.json").read_text())
        if python.exists():
            kinds, devices = tuple(about["kinds"]), tuple(about["devices"])
            peers.append(Contestant(home.name, (str(python), str(script)), kinds, about["same_batches"], devices))
        else:
            made = f"python3 -m venv {home / '.venv'} && {python} -m pip install -r {home / 'requirements.txt'}"
            missing.append(f"{home.name} is left out. To have it: {made}")
    if not peers and not missing:
        raise ValueError(f"{folder} holds no peers: give the folder that has NAME/peer.py, such as benchmarks/peers")
    return peers, missing


def hold(
    kind: str,
    size: Size,
    contestants: Sequence[Contestant],
    *,
    repeats: int,
    threads: int | None = None,
    clock: Clock = "wall",
    device: str = "cpu",
    show: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Return the cost of each contestant's turns, by its name, and the ratios of its ``clock`` to wafl's."""
    with tempfile.TemporaryDirectory() as folder:
        work = make_work(kind, size, device)
        path = Path(folder) / "work.npz"
        work.write(str(path))
        turns: dict[str, list[dict[str, Any]]] = {each.name: [] for each in contestants}
        for repeat in range(repeats):
            for each in contestants:
                if any("failed" in turn for turn in turns[each.name]):
                    continue
                turns[each.name].append(_turn(each, path, threads))
                show(f"{kind}, turn {repeat + 1} of {repeats}: {each.name}")
    reference = turns["plain PyTorch"][0].get("params") if "plain PyTorch" in turns else None
    rows = {each.name: _row(each, turns[each.name], turns[OURS], work, reference, clock) for each in contestants}
    about = {**provenance(), "threads": threads or os.cpu_count()}
    held = {"repeats": repeats, "clock": clock, "device": device}
    return {"kind": kind, **asdict(size), **held, "machine": about, "rows": rows}


def _turn(each: Contestant, work: Path, threads: int | None) -> dict[str, Any]:
    result = work.with_name("result.npz")
    result.unlink(missing_ok=True)
    here = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    allowed = sorted(here)[: threads or len(here)]
    # Peers find nothing of ours but what they are handed.
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")] if each.command[0] == sys.executable else []
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parent / "shared"), *paths])),
        "OMP_NUM_THREADS": str(len(allowed) or threads or os.cpu_count() or 1),
        "WAFL_BENCH_BEGAN": str(time.time()),
    }
    done = subprocess.run(
        [*each.command, str(work), str(result)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=(lambda: os.sched_setaffinity(0, allowed)) if allowed else None,
    )
    if done.returncode != 0 or not result.exists():
        lines = (done.stderr or done.stdout).strip().splitlines()
        return {"failed": lines[-1] if lines else f"exit status {done.returncode}"}
    with np.load(result) as file:
        params = {name: file[name] for name in file.files}
    return {**json.loads(done.stdout.strip().splitlines()[-1]), "params": params}


def _row(
    each: Contestant,
    turns: Sequence[Mapping[str, Any]],
    ours: Sequence[Mapping[str, Any]],
    work: Work,
    reference: Mapping[str, NDArray[Any]] | None,
    clock: Clock,
) -> dict[str, Any]:
    if failed := [turn["failed"] for turn in turns if "failed" in turn]:
        return {"failed": failed[0]}
    row: dict[str, Any] = {name: [turn[name] for turn in turns] for name in ("startup", "wall", "cpu", "peak_bytes")}
    row["gpu_bytes"] = [turn.get("gpu_bytes") for turn in turns]
    row["clock"] = "wall" if None in row[clock] else clock  # a peer with separate processes
    both = zip(turns, ours, strict=True)
    ratios = [turn[row["clock"]] / mine[row["clock"]] for turn, mine in both if "failed" not in mine]
    if not ratios:
        return {**row, "failed": "there is nothing to compare it with: wafl failed"}
    row["ratio"] = {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
    params = turns[0]["params"]
    row["same_bits"] = all(_same_bits(params, turn["params"]) for turn in turns[1:]) if len(turns) > 1 else None
    row["accuracy"] = _accuracy(work, params)
    if reference is not None:
        row["difference"] = max(float(np.abs(value - reference[name]).max()) for name, value in params.items())
        exact = each.same_batches and work.about["device"] == "cpu"  # a GPU sums in other orders, which grows
        if exact and row["difference"] > SAME:
            row["failed"] = f"its parameters differ from the plain loop's by {row['difference']:.1e}, above {SAME:g}"
        elif not exact and _accuracy(work, reference) - row["accuracy"] > LIKE:
            row["failed"] = f"its accuracy is {row['accuracy']:.3f}, more than {LIKE:g} below the plain loop's"
    return row


def _same_bits(one: Mapping[str, NDArray[Any]], other: Mapping[str, NDArray[Any]]) -> bool:
    """Return whether two turns with the same seed ended with the same bits."""
    return all(value.tobytes() == other[name].tobytes() for name, value in one.items())


def _accuracy(work: Work, params: Mapping[str, NDArray[Any]]) -> float:
    """Return the share of training examples that the model classifies correctly."""
    x, y, (_, model) = torch.from_numpy(work.x), torch.from_numpy(work.y), opened(work)
    device = work.about["device"]
    model.load_state_dict({name: torch.from_numpy(value) for name, value in params.items()})
    count = min(JUDGED, len(y))
    chosen = torch.arange(count) * len(y) // count  # of all clients alike
    model.to(device)
    with torch.no_grad():
        predicted = torch.cat([model(x[rows].to(device)).argmax(1).cpu() for rows in chosen.split(256)])
    return float((predicted == y[chosen]).double().mean())


def chart(contests: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw one panel per work, with one bar per contestant and a line from its lowest to its highest turn."""
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(7.0, 1.0 + 1.9 * len(contests)), layout="constrained")
    panels: Any = figure.subplots(len(contests), squeeze=False)
    for axes, contest in zip(panels[:, 0], contests, strict=True):
        rows = {name: row["ratio"] for name, row in contest["rows"].items() if "failed" not in row}
        names, middle = list(rows)[::-1], [row["median"] for row in rows.values()][::-1]
        low = [row["median"] - row["lowest"] for row in rows.values()][::-1]
        high = [row["highest"] - row["median"] for row in rows.values()][::-1]
        colors = [COLORS[0] if name == "wafl" else "#999999" for name in names]
        axes.barh(names, middle, xerr=[low, high], color=colors, height=0.6)
        for index, value in enumerate(middle):
            axes.text(value, index + 0.32, f" {value:.2f}", va="bottom", fontsize=8)
        axes.set_xscale("log")
        axes.margins(y=0.18)
        axes.set_title(f"{contest['kind']}, {contest['clients']} clients", fontsize=10)
    panels[-1, 0].set_xlabel(f"times as long as wafl ({contests[0]['clock']} time, logarithmic)")
    figure.savefig(path, dpi=150)
