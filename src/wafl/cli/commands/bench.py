"""``wafl bench``: speed against others on this machine."""

import json
import statistics
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table
from typer import Option

from wafl.base.files import write_whole
from wafl.cli.shared import one_line_errors
from wafl.cli.terminal import make_console, say
from wafl.evaluation.tables import plain_table


def bench(
    work: list[str] | None = None,
    clients: Annotated[int, Option(min=1)] = 100,
    examples: Annotated[int, Option(min=1)] = 525,
    cohort: Annotated[int, Option(min=1)] = 10,
    rounds: Annotated[int, Option(min=1)] = 10,
    repeats: Annotated[int, Option(min=1)] = 3,
    peers: Path | None = None,
    threads: Annotated[int | None, Option(min=1)] = None,
    clock: str = "wall",
    output: Path = Path(),
) -> None:
    """Measure the speed of wafl on this machine, against a plain PyTorch loop and other libraries."""
    from wafl.lab.contest.contest import CLOCKS, at_home, chart, hold, read_peers
    from wafl.lab.contest.work import KINDS, Size

    with one_line_errors():
        kinds = work or ["fedavg", "wafl"]
        for kind in kinds:
            if kind not in KINDS:
                raise ValueError(f"--work {kind} must be one of {', '.join(KINDS)}")
        if clock not in CLOCKS:
            raise ValueError(f"--clock {clock} must be one of {', '.join(CLOCKS)}")
        if cohort > clients:
            raise ValueError(f"--cohort {cohort} is more than --clients {clients}: lower it")
        others, missing = read_peers(peers) if peers is not None else ([], [])
        for line in missing:
            say(f"Note: {line}")
        size, found = Size(clients, examples, cohort, rounds), list[dict[str, Any]]()
        console = make_console()
        for kind in kinds:
            rivals = [*at_home(kind), *(peer for peer in others if kind in peer.kinds)]
            with console.status(kind) as status:
                contest = hold(kind, size, rivals, repeats=repeats, threads=threads, clock=clock, show=status.update)
            console.print(_table(contest))
            found.append(contest)
        output.mkdir(parents=True, exist_ok=True)
        write_whole(output / "bench.json", json.dumps(found, indent=1).encode())
        chart(found, output / "bench.png")
        console.print(f"Written: {output / 'bench.json'}, {output / 'bench.png'}", markup=False, soft_wrap=True)


def _table(contest: dict[str, Any]) -> Table:
    """A table with one row per contestant: seconds of the median turn, and how many times as long as wafl it takes."""
    clock = contest["clock"]
    title = f"{contest['kind']}: {contest['clients']} clients x {contest['examples']}, {contest['rounds']} rounds"
    time = f"{'time' if clock == 'wall' else 'processor'}, s"
    table = plain_table("", "start, s", time, "times wafl", "peak, MiB", "accuracy", title=title)
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
            f"{100 * row['accuracy']:.1f}%",
        )
    return table
