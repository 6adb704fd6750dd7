"""Make the tables of the README, of docs/ and of the examples again.

    .venv/bin/python benchmarks/tables.py [--list] [--page README.md] [--smallest]

Runs the command that makes each table, and prints it below the place where the table stands, to be compared and copied.
All of them take about two hours on two idle cores; seconds differ between machines, ratios should not.
"""

from __future__ import annotations

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
    """The page it stands on, how its first line begins, and the command that makes it."""

    page: str
    begins: str
    command: str


TABLES = [
    Table("README.md", "method       clean", "wafl run"),
    Table("docs/tour.md", "| work | plain PyTorch |", "python benchmarks/speed.py"),
    Table("docs/flower.md", "| | embedded | simulation |", "python benchmarks/flower.py"),
    Table("docs/flower.md", "| nodes | embedded, s per round |", "python benchmarks/flower.py --only crowd"),
    Table("docs/flower.md", "| | FedAvg, 100 clients |", "python benchmarks/privacy.py"),
    Table("docs/liars.md", "| data | method | liars |", "python benchmarks/liars.py"),
    Table("docs/liars.md", "| data | seed 0 |", "python benchmarks/liars.py --honest"),
    Table("docs/liars.md", "| data | method | none |", "python benchmarks/liars.py --honest"),
    Table("docs/certificate-files.md", "| kind | FedAvg | small weights |", "python benchmarks/published.py"),
    Table("docs/gpu.md", "| | precision | central |", "python benchmarks/gpu.py"),
    Table("docs/gpu.md", "| model |", "python benchmarks/gpu.py --part models"),
    Table(
        "docs/performance.md",
        "| FedAvg | times wafl",
        "wafl bench --peers benchmarks/peers --threads 1 --clock cpu",
    ),
    Table(
        "docs/performance.md",
        "| WAFL, exactly 40 inner steps |",
        "wafl bench --work wafl --peers benchmarks/peers --threads 1 --clock cpu",
    ),
    Table("docs/performance.md", "| times the plain loop |", "python benchmarks/unequal.py"),
    Table("docs/performance.md", "| path | file |", "python benchmarks/paths.py"),
    Table("docs/gpu.md", "| path | file |", "python benchmarks/paths.py --device cuda"),
    Table("docs/performance.md", "| | command | |", "python benchmarks/million.py"),
    Table("docs/faq.md", "| method | last | averaged |", "python benchmarks/average_last.py --data demo"),
    Table("docs/choosing.md", "| data, on what | best of six |", "python benchmarks/auto_radius.py"),
    Table(
        "docs/attack-frontier.md",
        "| data, attack |",
        "python benchmarks/attack_frontier.py --device cuda --processes 8 --output docs/evidence/attack-frontier.json",
    ),
    Table("docs/domains.md", "| target | ball |", "python benchmarks/domains.py --output docs/evidence/domains.json"),
    Table(
        "docs/few-examples.md",
        "| regret in log-loss |",
        "python benchmarks/few_examples.py --output docs/evidence/few-examples.json",
    ),
    Table(
        "docs/certified-frontier.md",
        "| rival less WAFL, points |",
        "python benchmarks/certified_frontier.py --output docs/evidence/certified-frontier.json",
    ),
    Table("docs/leaderboard.md", "| method |", "wafl leaderboard --output docs/leaderboard.json"),
    Table("docs/natural.md", "| data | clients | examples |", "python benchmarks/natural.py"),
    Table("docs/rivals.md", "| method, on what it has not seen | digits", "python benchmarks/rivals.py --processes 16"),
    Table(
        "docs/rivals.md",
        "| method, on what it has not seen | MNIST",
        "python benchmarks/rivals.py --only domains --seeds 0 1 2 --data-dir ../shared/data --methods FedAvg WAFL"
        " 'WAFL, shape of clients' GroupDRO CVaR --meant-for domain",
    ),
    Table("docs/rivals.md", "| method, with garbage |", "python benchmarks/garbage.py"),
    Table("docs/theory.md", "| | l1 | l2 | l_inf |", "python benchmarks/radius.py"),
    Table(
        "docs/theory.md",
        "| CNN, radius | 0.01 |",
        "python benchmarks/radius.py --data mnist --data-dir ../shared/data --models cnn --channels 4 8 --rounds 40"
        " --cohort 5 --around 0.8 1.25 --rung 10 --device cuda",
    ),
    Table("docs/theory.md", "| radius | 0.1 |", "python benchmarks/certificates.py --tight digits mnist"),
    Table("docs/theory.md", "| network, norm: certified / simple / reached |", "python benchmarks/networks.py"),
    Table("docs/models.md", "| data | options | clean |", "python benchmarks/lipschitz.py --part bars"),
    Table("docs/theory.md", "| data, clients x tests |", "python benchmarks/confidence.py"),
    Table("docs/theory.md", "| errors of one client |", "python benchmarks/confidence.py"),
    Table("docs/audit.md", "| data | held-out clients |", "python benchmarks/audit.py"),
    Table("docs/theory.md", "| radius | W_1: optimum |", "python benchmarks/optimum.py"),
    Table("docs/theory.md", "| data | radius | W_1: wafl.sklearn |", "python benchmarks/optimum.py"),
    Table("docs/theory.md", "| radius, label cost |", "python benchmarks/optimum.py"),
    Table("docs/proofs.md", "| bound | value |", "python benchmarks/bounds.py"),
    Table("docs/weights.md", "| data | `mixture` |", "python benchmarks/transport.py"),
    Table("docs/weights.md", "| data | `mixture` |", "python benchmarks/transport.py --data ../shared/data"),
    Table("examples/flower_hospitals/README.md", " hospital ", "python examples/flower_hospitals/run.py"),
    Table(
        "examples/flower_quickstart/README.md",
        "| run | test images | moved |",
        "flwr run examples/flower_quickstart --stream"
        " --federation-config 'num-supernodes=4 client-resources-num-cpus=1'",
    ),
]
"""Numbers in the text come from the same commands, and from memory.py, checkpoint.py,
convolutions.py and tune_demo.py."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--list", action="store_true", help="say where the tables are and what makes them, run nothing")
    parser.add_argument("--page", help="only the tables of this page")
    given = options.read(parser, argv, list=True)
    failed = 0
    for table in TABLES:
        if given.page in (None, table.page):
            print(f"\n{table.page}:{line_of(table)}: {table.command}", flush=True)
            if not given.list:
                program, *arguments = shlex.split(table.command)
                command = [str(Path(sys.executable).parent / program), *arguments]
                failed += subprocess.run(command, cwd=ROOT, check=False).returncode != 0
    if failed:
        raise SystemExit(f"{failed} of the commands failed")


def line_of(table: Table) -> int:
    for number, line in enumerate((ROOT / table.page).read_text().splitlines(), start=1):
        if line.startswith(table.begins):
            return number
    raise SystemExit(f"{table.page} has no table that begins with {table.begins!r}")


if __name__ == "__main__":
    main()
