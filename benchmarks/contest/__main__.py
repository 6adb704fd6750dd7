"""Compare the speed of wafl on this machine with a plain PyTorch loop and with other libraries.

    .venv/bin/python -m benchmarks.contest [--smallest]
    .venv/bin/python -m benchmarks.contest --work cnn --peers benchmarks/peers --threads 1 --clock cpu
    .venv/bin/python -m benchmarks.contest --work cnn resnet --epochs 5 --examples 256 --device cuda

All contestants do the same work from the same start, with the same batches if they accept them: 784 features and 10
classes (images of 3 x 32 x 32 for the CNN and ResNet-18), batches of 64, 2 local epochs, and exactly 40 inner steps of
WAFL. A contestant fails if it ends with other parameters (not on a GPU), or with clearly less accuracy. Time to start,
which includes compiling, is counted separately. Each turn has the same seed: the table says whether a contestant's
turns ended with the same bits.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import options
from benchmarks.contest.contest import CLOCKS, at_home, chart, hold, read_peers
from benchmarks.contest.work import KINDS, Size
from wafl.base.files import write_whole
from wafl.evaluation.tables import plain_table


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--work", nargs="+", choices=list(KINDS), default=["fedavg", "wafl"])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--examples", type=int, default=525, help="per client")
    parser.add_argument("--cohort", type=int, default=10, help="clients per round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=2, help="local epochs per round")
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="peers that cannot use it are left out"
    )
    parser.add_argument("--repeats", type=int, default=3, help="turns of each contestant")
    parser.add_argument("--peers", type=Path, help="a folder of other libraries, such as benchmarks/peers")
    parser.add_argument("--threads", type=int, help="processors that each contestant may use; by default all")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="compare wall-clock or processor time")
    parser.add_argument("--output", type=Path, default=Path(), help="the folder for bench.json and bench.png")
    given = options.read(parser, argv, work=["fedavg"], clients=8, examples=70, cohort=3, rounds=1, repeats=1)
    for name in ("clients", "examples", "cohort", "rounds", "epochs", "repeats", "threads"):
        if getattr(given, name) is not None and getattr(given, name) < 1:
            parser.error(f"--{name} {getattr(given, name)} must be at least 1")
    if given.cohort > given.clients:
        parser.error(f"--cohort {given.cohort} is more than --clients {given.clients}: lower it")
    try:
        others, missing = read_peers(given.peers) if given.peers is not None else ([], [])
    except ValueError as error:
        parser.error(str(error))
    for line in missing:
        print(f"Note: {line}")
    size, rows = Size(given.clients, given.examples, given.cohort, given.rounds, given.epochs), list[dict[str, Any]]()
    console = Console()
    for kind in given.work:
        able = (peer for peer in others if kind in peer.kinds and given.device in peer.devices)
        rivals = [*at_home(kind, given.device), *able]
        turns: dict[str, Any] = {"repeats": given.repeats, "threads": given.threads, "clock": given.clock}
        turns["device"] = given.device
        with console.status(kind) as status:
            contest = hold(kind, size, rivals, **turns, show=status.update)
        console.print(_table(contest))
        rows.append(contest)
    given.output.mkdir(parents=True, exist_ok=True)
    write_whole(given.output / "bench.json", json.dumps(rows, indent=1).encode())
    chart(rows, given.output / "bench.png")
    print(f"Written: {given.output / 'bench.json'}, {given.output / 'bench.png'}")


def _table(contest: dict[str, Any]) -> Table:
    """Return a table with one row per contestant: seconds of the median turn, and its ratio to wafl."""
    clock = contest["clock"]
    title = f"{contest['kind']}: {contest['clients']} clients x {contest['examples']}, {contest['rounds']} rounds"
    time = f"{'time' if clock == 'wall' else 'processor'}, s"
    table = plain_table(
        "", "start, s", time, "times wafl", "peak, MiB", "GPU, MiB", "same bits", "accuracy", title=title
    )
    for name, row in contest["rows"].items():
        if "ratio" not in row:
            table.add_row(name, "", f"failed: {row['failed']}")
            continue
        ratio, wrong = row["ratio"], f" (failed: {row['failed']})" if "failed" in row else ""
        table.add_row(
            name + wrong,
            f"{statistics.median(row['startup']):.1f}",
            f"{statistics.median(row[row['clock']]):.3f}{'' if row['clock'] == clock else ' (time)'}",
            f"{ratio['median']:.2f} ({ratio['lowest']:.2f} to {ratio['highest']:.2f})",
            f"{max(row['peak_bytes']) / 2**20:.0f}",
            "" if None in row["gpu_bytes"] else f"{max(row['gpu_bytes']) / 2**20:.0f}",
            {True: "yes", False: "no", None: ""}[row["same_bits"]],
            f"{100 * row['accuracy']:.1f}%",
        )
    return table


if __name__ == "__main__":
    main()
