"""Recompute the tables in the README, docs/ and the examples.

    python -m research tables [--list] [--page README.md] [--smallest]

Runs the command that makes each table, and prints its output below the position of the table, to compare and copy.
All of them take about two hours on two idle cores; seconds differ between machines, ratios should not.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import options

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Table:
    """The page of a table, the beginning of its first line, and the command that makes it."""

    page: str
    begins: str
    command: str


TABLES = [
    Table("docs/tour.md", "method       clean", "wafl run"),
    Table("docs/tour.md", "| work | plain PyTorch |", "python -m benchmarks.speed"),
    Table("docs/flower.md", "| | embedded | simulation |", "python -m benchmarks.flower"),
    Table("docs/flower.md", "| nodes | embedded, s per round |", "python -m benchmarks.flower --only crowd"),
    Table("docs/flower.md", "| | FedAvg, 100 clients |", "python -m research privacy"),
    Table("docs/privacy.md", "| | FedAvg, digits |", "python -m research private-nodes --data digits --seeds 5"),
    Table("docs/liars.md", "| data | method | liars |", "python -m research liars"),
    Table("docs/liars.md", "| data | method | malicious |", "python -m research malicious"),
    Table("docs/liars.md", "| data | method | defense | accuracy under none |", "python -m research malicious"),
    Table("docs/liars.md", "| data | seed 0 |", "python -m research liars --honest"),
    Table("docs/liars.md", "| data | method | none |", "python -m research liars --honest"),
    Table("docs/certificate-files.md", "| kind | FedAvg | small weights |", "python -m research published"),
    Table("docs/gpu.md", "| | precision | central |", "python -m benchmarks.gpu"),
    Table("docs/gpu.md", "| model |", "python -m benchmarks.gpu --part models"),
    Table(
        "docs/performance.md",
        "| FedAvg | times wafl",
        "python -m benchmarks.contest --peers benchmarks/peers --threads 1 --clock cpu",
    ),
    Table(
        "docs/performance.md",
        "| WAFL, exactly 40 inner steps |",
        "python -m benchmarks.contest --work wafl --peers benchmarks/peers --threads 1 --clock cpu",
    ),
    Table(
        "docs/performance.md",
        "| FedAvg, 100 clients |",
        "python -m benchmarks.contest --work cnn --epochs 5 --examples 64 --cohort 4 --rounds 1 --repeats 2 "
        "--threads 1 --clock cpu --peers benchmarks/peers",
    ),
    Table("docs/performance.md", "| times the plain loop |", "python -m benchmarks.networks --part unequal"),
    Table("docs/performance.md", "| times FedAvg |", "python -m benchmarks.speed --part norms"),
    Table("docs/performance.md", "| path | file |", "python -m benchmarks.paths"),
    Table("docs/gpu.md", "| path | file |", "python -m benchmarks.paths --device cuda"),
    Table(
        "docs/performance.md",
        "| | CNN, times wafl |",
        "python -m benchmarks.contest --work cnn --epochs 5 --examples 256 --rounds 40 --repeats 2 --device cuda "
        "--peers benchmarks/peers",
    ),
    Table("docs/performance.md", "| MiB | data |", "python -m benchmarks.memory --part million"),
    Table("docs/performance.md", "| MiB | sent |", "python -m benchmarks.memory --part resnet"),
    Table("docs/performance.md", "| | command | |", "python -m benchmarks.million"),
    Table("docs/faq.md", "| method | last | averaged |", "python -m research average-last --data demo"),
    Table("docs/choosing.md", "| data, on what | best of six |", "python -m research auto-radius"),
    Table(
        "docs/attack-frontier.md",
        "| data, attack |",
        "python -m research attack-frontier --device cuda --processes 8 --output docs/evidence/attack-frontier.json",
    ),
    Table("docs/domains.md", "| target | ball |", "python -m research domains --output docs/evidence/domains.json"),
    Table(
        "docs/few-examples.md",
        "| regret in log-loss |",
        "python -m research few-examples --output docs/evidence/few-examples.json",
    ),
    Table(
        "docs/certified-frontier.md",
        "| rival less WAFL, points |",
        "python -m research certified-frontier --output docs/evidence/certified-frontier.json",
    ),
    Table("docs/leaderboard.md", "| method |", "python -m research leaderboard --output docs/leaderboard.json"),
    Table("docs/prediction-sets.md", "| sets | labels covered (%) |", "python -m research prediction-sets"),
    Table("docs/natural.md", "| data | clients | examples |", "python -m research natural"),
    Table(
        "docs/tabular.md",
        "| data | seeds | train | columns | auto, l2 |",
        "python -m research tabular-radius --output docs/evidence/tabular-radius.json",
    ),
    Table("docs/rivals.md", "| method, on what it has not seen | digits", "python -m research rivals --processes 16"),
    Table(
        "docs/rivals.md",
        "| method, on what it has not seen | MNIST",
        "python -m research rivals --only domains --seeds 0 1 2 --data-dir ../shared/data --methods FedAvg WAFL"
        " 'WAFL, shape of clients' GroupDRO CVaR --meant-for domain",
    ),
    Table("docs/rivals.md", "| method, with garbage |", "python -m research garbage"),
    Table("docs/theory.md", "| | l1 | l2 | l_inf |", "python -m research radius"),
    Table(
        "docs/theory.md",
        "| CNN, radius | 0.01 |",
        "python -m research radius --data mnist --data-dir ../shared/data --models cnn --channels 4 8 --rounds 40"
        " --cohort 5 --around 0.8 1.25 --rung 10 --device cuda",
    ),
    Table("docs/theory.md", "| radius | 0.1 |", "python -m research certificates"),
    Table("docs/theory.md", "| network, norm: certified / simple / reached |", "python -m research networks"),
    Table("docs/models.md", "| data | options | clean |", "python -m research lipschitz"),
    Table("docs/theory.md", "| data, clients x tests |", "python -m research confidence"),
    Table("docs/theory.md", "| errors of one client |", "python -m research confidence"),
    Table("docs/audit.md", "| data | held-out clients |", "python -m research audit"),
    Table("docs/theory.md", "| radius | W_1: optimum |", "python -m research optimum"),
    Table("docs/theory.md", "| data | radius | W_1: wafl.sklearn |", "python -m research optimum"),
    Table("docs/theory.md", "| radius, label cost |", "python -m research optimum"),
    Table("docs/proofs.md", "| bound | value |", "python -m research bounds"),
    Table("docs/weights.md", "| data | `mixture` |", "python -m benchmarks.transport"),
    Table("docs/weights.md", "| data | `mixture` |", "python -m benchmarks.transport --data ../shared/data"),
    Table("examples/flower_hospitals/README.md", " hospital ", "python examples/flower_hospitals/run.py"),
    Table(
        "examples/flower_quickstart/README.md",
        "| run | test images | moved images |",
        "flwr run examples/flower_quickstart --stream"
        " --federation-config 'num-supernodes=4 client-resources-num-cpus=1'",
    ),
]
"""Numbers in the text come from the same commands, and from ``benchmarks.memory``, ``benchmarks.checkpoint``,
``benchmarks.networks`` and ``python -m research tune-demo``."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--list", action="store_true", help="list the tables and their commands, and run nothing")
    parser.add_argument("--page", help="only the tables of this page")
    given = options.read(parser, argv, list=True)
    failed = 0
    for table in TABLES:
        if given.page in (None, table.page):
            print(f"\n{table.page}:{line_of(table)}: {table.command}", flush=True)
            if not given.list:
                program, *arguments = shlex.split(table.command)
                programs = Path(sys.executable).parent
                # `flwr run` starts flower-superlink by its name.
                environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
                command = [str(programs / program), *arguments]
                failed += subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode != 0
    if failed:
        raise SystemExit(f"{failed} of the commands failed")


def line_of(table: Table) -> int:
    """Return the line of a table on its page."""
    for number, line in enumerate((ROOT / table.page).read_text().splitlines(), start=1):
        if line.startswith(table.begins):
            return number
    raise SystemExit(f"{table.page} has no table that begins with {table.begins!r}")


if __name__ == "__main__":
    main()
