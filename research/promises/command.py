"""Issue and sign promises about the next client, and check them on clients that were sealed until then.

    python -m research promises            issues and signs: docs/promises/issued.json, to be committed by itself
    python -m research promises --open     opens the sealed clients: docs/promises/opened.json

--open refuses to start if anything changed since the promises were issued. experiments/registered/promises.toml
defines the promises and the decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks import options
from research.promises.page import page as page
from research.promises.phases import issue_all, open_all

DOCS = Path(__file__).parents[2] / "docs"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--open", action="store_true", help="open the sealed clients of the promises that were issued")
    parser.add_argument("--output", type=Path, default=DOCS / "promises", help="the folder for the numbers")
    parser.add_argument("--work", type=Path, default=Path("runs/promises"), help="the folder of the key and the models")
    given = options.read(parser, argv)
    phase = open_all if given.open else issue_all
    try:
        phase("smoke" if given.smallest else "full", given.output, given.work)
    except (ValueError, OSError) as error:
        parser.error(str(error))
