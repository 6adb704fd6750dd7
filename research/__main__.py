"""List and run experiments. Run it from the root of a clone of the repository.

    python -m research                                  list the experiments
    python -m research reproduce figure-4 [options]     reproduce figures and tables
    python -m research leaderboard [options]            run one of our own experiments
    python -m research pages [--check]                  regenerate the pages of evidence from their numbers
    python -m research tables [--list]                  run the commands behind all other tables in the docs
    python -m research front-page                       draw the figure of README and the terminal of the tour

`python -m research NAME --help` prints the options of an experiment.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module

from research.catalog import EXPERIMENTS, EXPLORATORY, FURTHER, PAPER, REGISTERED, REPRODUCE
from research.experiment import Experiment
from wafl.base.errors import did_you_mean

TOOLS = {
    "reproduce": REPRODUCE,
    "pages": "research.pages",
    "tables": "research.tables",
    "front-page": "research.front_page",
}
"""Commands that are not one experiment, and their modules."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    words = sys.argv[1:] if argv is None else list(argv)
    if not words or words[0] in ("-h", "--help"):
        print(__doc__, *_lines(), sep="\n")
        return
    name, *rest = words
    if name not in EXPERIMENTS and name not in TOOLS:
        hint = did_you_mean(name, [*EXPERIMENTS, *TOOLS]) or ": `python -m research` lists them"
        print(f"unknown experiment {name!r}{hint}", file=sys.stderr)
        raise SystemExit(2)
    sys.argv[0] = f"python -m research {name}"  # what a parser prints
    if name in TOOLS:
        import_module(TOOLS[name]).main(rest)
    else:
        EXPERIMENTS[name].run(rest)


def _lines() -> Iterable[str]:
    groups: dict[str, tuple[Experiment, ...]] = {
        "The paper's figures and tables:": PAPER,
        "Ours, beside the paper's:": FURTHER,
        "Ours, registered before they ran:": REGISTERED,
        "Ours, exploratory:": EXPLORATORY,
    }
    for title, listed in groups.items():
        yield title
        yield from (f"  {each.name:20} {each.title}" for each in listed)
        yield ""


if __name__ == "__main__":
    main()
