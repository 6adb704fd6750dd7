"""Regenerate the tables and figures of README and the pages of evidence from their numbers, without training.

python -m research pages [--check]
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence

from research import drawing, front_text
from research.catalog import EXPERIMENTS
from research.experiment import ROOT
from research.exploratory import client_kinds
from research.promises import page as promises
from research.registered import attack_frontier, figures
from research.reproduction import draw as reproduction

DOCS = ROOT / "docs"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page differs from its numbers")
    given = parser.parse_args(argv)
    made = pages()
    if given.check:
        stale = [name for name, text in made.items() if (DOCS / name).read_text(encoding="utf-8") != text]
        if stale:
            raise SystemExit(f"{', '.join(stale)} differ from their numbers: run `python -m research pages`")
        return
    for name, text in made.items():
        (DOCS / name).write_text(text, encoding="utf-8")
    with drawing.large():
        promises.draw(DOCS / "promises" / "promises.png")
    figures.main()
    client_kinds.draw()
    reproduction.main(DOCS / "reproduction")
    attack_frontier.redraw()


def pages() -> dict[str, str]:
    """Return each page with generated tables, with new tables, by its path below docs/."""
    tables: dict[str, str] = {}
    for experiment in {each.module: each for each in EXPERIMENTS.values()}.values():
        tables |= experiment.page()
    tables |= front_text.page()
    paths = ["../README.md", *(path.relative_to(DOCS).as_posix() for path in DOCS.glob("**/*.md"))]
    texts = {path: (DOCS / path).read_text(encoding="utf-8") for path in paths}
    return {name: filled(text, tables) for name, text in texts.items() if "<!-- table " in text}


def filled(page: str, tables: Mapping[str, str]) -> str:
    """Return a page with new tables between ``<!-- table NAME -->`` and ``<!-- end -->``."""

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name not in tables:
            raise ValueError(f"there are no numbers for the table {name!r}")
        return f"<!-- table {name} -->\n\n{tables[name]}\n\n<!-- end -->"

    return re.sub(r"<!-- table (\S+) -->.*?<!-- end -->", fill, page, flags=re.DOTALL)
