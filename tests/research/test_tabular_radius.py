"""The table of ``radius="auto"`` on docs/tabular.md is what its committed numbers say."""

from __future__ import annotations

import json
from pathlib import Path

from research.exploratory.tabular_radius import lines

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_of_chosen_radii_is_that_of_the_committed_numbers() -> None:
    rows = json.loads((DOCS / "evidence" / "tabular-radius.json").read_text())["rows"]
    assert "\n".join(lines(rows)) in (DOCS / "tabular.md").read_text()
