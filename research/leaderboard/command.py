"""Rank methods on natural clients: people and places that no training has seen.

    python -m research leaderboard --processes 16 --output docs/leaderboard.json

What is compared, how it is tuned and what decides is in experiments/registered/natural.toml. After an interruption, the
same command continues. Several machines can share the data sets: put the results of all of them into one --work folder.
Data sets that are not here are named and skipped; nothing is downloaded.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks import options
from research.jobs import add_options
from research.leaderboard.measure import leaderboard
from research.leaderboard.page import page as page
from wafl.base.files import write_whole


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    add_options(parser, "leaderboard")
    parser.add_argument("--output", type=Path, default=Path("leaderboard.json"), help="the file for the numbers")
    parser.add_argument("--data", nargs="+", default=[], help="some of the data sets; by default all")
    given = options.read(parser, argv)
    scale = "smoke" if given.smallest else "full"
    try:
        numbers = leaderboard(given.data, scale, given.work, 0 if given.done else given.processes)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    write_whole(given.output, json.dumps(numbers, indent=1).encode())
    print(f"Numbers: {given.output}")
