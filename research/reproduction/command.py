"""Reproduce the paper's figures and tables: their numbers as JSON, and a picture of them.

    python -m research reproduce                        list the figures and tables
    python -m research reproduce figure-4 --protocol paper --scale small

Each figure or table is one TOML file in experiments/, with both protocols. Methods run one after another, or several
at once (--jobs). After an interruption, the same command continues; if the numbers exist, it only draws. Data sets that
are not in the data folder are named and skipped: nothing is downloaded. The exit status is 0 if every part was made, 3
if the data of some part are not here, and 2 after an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks import options
from research.reproduction import experiments as files
from research.reproduction.page import page as page
from research.reproduction.reproduce import reproduce
from wafl.base.errors import ConfigError

DOCS = Path(__file__).parents[2] / "docs"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("names", nargs="*", help="such as figure-4; by default, list them")
    parser.add_argument("--protocol", default="fair", choices=files.PROTOCOLS, help="the paper's settings, or tuned")
    parser.add_argument("--scale", default="full", choices=files.SCALES, help="small: two minutes; smoke: seconds")
    parser.add_argument("--part", nargs="+", help="only these data sets, such as mnist")
    parser.add_argument("--method", nargs="+", help="only these methods")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--jobs", type=int, default=1, help="methods at once, each in its own process")
    parser.add_argument("--output", type=Path, default=DOCS / "reproduction", help="the folder for numbers and figures")
    parser.add_argument("--work", type=Path, default=Path("runs/reproduction"), help="the folder for trials and models")
    given = options.read(parser, argv, scale="smoke")
    if not given.names:
        print("\n".join(f"{each:16} {files.read(each, 'fair', 'full')[0].title}" for each in files.names()))
        return
    try:
        parts = [each for name in given.names for each in files.read(name, given.protocol, given.scale)]
    except ConfigError as error:
        parser.error(str(error))
    chosen = [each for each in parts if each.part in (given.part or [each.part])]
    if not chosen:
        known = ", ".join(dict.fromkeys(each.part for each in parts))
        parser.error(f"--part {', '.join(given.part)} is not a part of {', '.join(given.names)}: use {known}")
    known = {entry.label for each in chosen for entry in each.experiment.methods}
    for unknown in set(given.method or []) - known:
        parser.error(f"--method {unknown} is not in {', '.join(given.names)}: there are {', '.join(sorted(known))}")
    try:
        made = [reproduce(each.on(given.device), given.output, given.work, print, given.method, given.jobs)
                for each in chosen]  # fmt: skip
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if None in made:
        raise SystemExit(3)
