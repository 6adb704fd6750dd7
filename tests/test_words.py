"""The pages are short: `python -m tools.words` counts their hand-written words, and each page has a limit."""

from __future__ import annotations

import pytest
from tools import words

TOTAL = 47_700
GUIDE, EVIDENCE = 1_200, 700
EVIDENCE_PAGES = {
    *("attack-frontier", "certified-frontier", "domains", "few-examples", "gpu", "leaderboard", "performance"),
    *("promises", "reproduction", "sealed-sets"),
}
LONGER = {
    "docs/deployment.md": 2_520,
    "docs/theory.md": 2_170,
    "docs/architecture.md": 2_140,
    "docs/runs.md": 1_850,
    "docs/equations.md": 1_840,
    "docs/performance.md": 1_750,
    "docs/gpu.md": 1_720,
    "docs/flower.md": 1_690,
    "docs/reproduction/attacked.md": 1_670,
    "docs/reproduction/domains.md": 1_520,
    "docs/privacy.md": 1_320,
    "docs/extending.md": 1_240,
    "docs/reproduction.md": 1_160,
}
"""Pages that are still too long, and how long they may be; shorten a page and lower its number."""
COUNTED = words.counted()


def usual(page: str) -> int:
    """Return how many words such a page may have."""
    name = page.removeprefix("docs/").removesuffix(".md")
    return EVIDENCE if name in EVIDENCE_PAGES or name.startswith("reproduction/") else GUIDE


@pytest.mark.parametrize("page", COUNTED)
def test_a_page_is_short(page: str) -> None:
    assert COUNTED[page] <= LONGER.get(page, usual(page)), "shorten it, fold what few readers need, or make two pages"


def test_all_pages_together_are_short() -> None:
    assert sum(COUNTED.values()) <= TOTAL


def test_a_page_that_may_be_longer_is_longer() -> None:
    assert [page for page in LONGER if COUNTED[page] <= usual(page)] == []


PAGE = """\
# Three words here

A [link](somewhere.md#far-away) and `some code`, | - | 7 |. ![four words of text](image.png)

```python
not = counted
```

    nor = this

    or = this

- An item.
    continued here

<!-- table name -->

not counted

<!-- end -->

| rows of a command | here |
| --- | --- |
| not | counted |

| rows by hand | here |
| --- | --- |

<details markdown><summary>Not counted</summary>

not counted

</details>

$$ x = 1 $$

The end.
"""


def test_words_are_counted() -> None:
    # Three words here; A link and some code 7; An item. continued here; rows by hand here; The end.
    assert words.words_of(PAGE, ("| rows of a",)) == 3 + 6 + 4 + 4 + 2
    assert words.words_of(PAGE) == 19 + 5 + 2
