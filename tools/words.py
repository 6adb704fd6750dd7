"""Count the hand-written words of README and of the pages in docs/: ``python -m tools.words`` lists them.

Words of code blocks, formulas, pictures, generated tables, generated pages and folded parts do not count. A link counts
as its text, and so do the words of generated answers, whose numbers alone are generated. A word has a letter or a
digit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from research.tables import TABLES

ROOT = Path(__file__).parents[1]
GENERATED = frozenset({"docs/api.md", "docs/attacks.md", "docs/methods.md"})
"""Pages that consist of docstrings."""
_ENDS = {
    "```": r" *```",
    "<!-- table answer-": r".*-->",
    "<!-- table ": r"<!-- end -->",
    "<!--": r".*-->",
    "<details": r".*</details>",
    "$$": r".*\$\$",
}
"""How a part begins that does not count, and the line that ends it."""


def words_of(text: str, tables: tuple[str, ...] = ()) -> int:
    """Count the hand-written words of a page; ``tables`` are the beginnings of its generated tables."""
    return sum(len(re.findall(r"\S*[^\W_]\S*", line)) for line in _written(text, tables))


def _written(text: str, tables: tuple[str, ...]) -> list[str]:
    """Return the lines that count, without addresses and tags."""
    result, end, last = list[str](), "", ""
    for line in text.splitlines():
        before, last = last, line
        if end:
            end = "" if re.fullmatch(end, line) else end
        elif begin := next((begin for begin in _ENDS if line.lstrip().startswith(begin)), None):
            one_line = begin != "```" and re.fullmatch(_ENDS[begin], line.lstrip()[len(begin) :])
            end = "" if one_line else _ENDS[begin]
        elif tables and line.startswith(tables):
            end = r"(?!\|).*"
        elif line.startswith("    ") and not before.strip():
            last = ""  # the block goes on
        else:
            result.append(re.sub(r"!\[[^]]*\]\([^)]*\)|(?<=\])\([^)\s]*\)|<[^>]+>", "", line))
    return result


def groups() -> dict[str, str]:
    """Return the group of each page of the site, such as "Guides", from mkdocs.yml."""
    site = settings()
    result = {page: group for group, pages in sidebar(site).items() for page in pages}
    return result | {f"docs/{name}.md": group for group, names in site["extra"]["more"].items() for name in names}


def sidebar(site: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the pages in the sidebar, by group."""
    titled = {group: entries for section in site["nav"] for group, entries in section.items()}
    return {
        group: [f"docs/{page}" for entry in entries for page in entry.values()] for group, entries in titled.items()
    }


def settings() -> dict[str, Any]:
    """Read mkdocs.yml without the Python functions that it names."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    return cast(dict[str, Any], yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader))


def counted() -> Mapping[str, int]:
    """Count the words of README and of each page in docs/ that is not generated."""
    pages = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md"))]
    begins = {page: tuple(table.begins for table in TABLES if table.page == page) for page in pages}
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in pages if page not in GENERATED}
    return {page: words_of(text, begins[page]) for page, text in texts.items()}


if __name__ == "__main__":
    numbers = counted()
    for name in sorted(numbers, key=lambda page: -numbers[page]):
        print(f"{numbers[name]:6,} {name}")
    print(f"{sum(numbers.values()):6,} in all")
