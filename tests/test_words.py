"""The pages are short: `python -m tools.words` counts their hand-written words, and each group has a limit."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

pytest.importorskip("yaml")

from tools import words

TOTAL = 45_000
LIMITS = {"Start": 1_200, "Guides": 1_200, "Concepts": 1_200, "Evidence": 700, "Reference": 1_200}
"""The largest number of words on a page, by its group in mkdocs.yml."""
COUNTED = words.counted()
GROUPS = words.groups()


def usual(page: str) -> int:
    """Return how many words a page of this group may have."""
    return LIMITS[GROUPS.get(page, "Start")]  # README.md is in no group


def too_long(counts: Mapping[str, int]) -> list[str]:
    """Return the pages that are over their limit."""
    return [page for page, count in counts.items() if count > usual(page)]


def test_pages_are_short() -> None:
    assert too_long(COUNTED) == [], "shorten it, fold what few readers need, or make two pages"


def test_all_pages_together_are_short() -> None:
    assert sum(COUNTED.values()) <= TOTAL


@pytest.mark.parametrize(
    ("page", "limit"), [("docs/promises.md", 700), ("docs/models.md", 1_200), ("README.md", 1_200)]
)
def test_a_page_with_one_word_too_many_is_found(page: str, limit: int) -> None:
    assert too_long({page: limit}) == []
    assert too_long({page: limit + 1}) == [page]


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
