"""The sidebar of the site is short, and each page outside it is linked from the home page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("yaml")

from tools import words

import wafl
from tests.pages import links

ROOT = Path(__file__).parents[1]
GROUPS = ["Start", "Guides", "Concepts", "Evidence", "Reference"]
MOST = 25


def test_the_sidebar_has_five_groups_and_at_most_25_entries() -> None:
    sidebar = words.sidebar(words.settings())
    assert list(sidebar) == GROUPS
    assert sum(map(len, sidebar.values())) <= MOST


def test_each_page_is_in_one_group() -> None:
    site = words.settings()
    listed = [page for pages in words.sidebar(site).values() for page in pages]
    listed += [f"docs/{name}.md" for names in site["extra"]["more"].values() for name in names]
    assert sorted(listed) == sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md"))
    assert set(words.groups().values()) == set(GROUPS)


def test_the_home_page_links_each_page_outside_the_sidebar() -> None:
    linked = {f"docs/{target.partition('#')[0]}" for _, _, target in links("docs/index.md")}
    inside = {page for pages in words.sidebar(words.settings()).values() for page in pages}
    assert words.groups().keys() - inside - linked == set()


def test_related_functions_are_public_and_on_the_page_of_the_api() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    sections = [
        section
        for path in (ROOT / "src").rglob("*.py")
        for section in re.findall(r"^ *See Also:\n(.*)", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(sections) >= 8
    for name in re.findall(r":func:`wafl\.(\w+)`", "\n".join(sections)):
        function = getattr(wafl, name)
        assert f"::: {function.__module__}.{function.__qualname__}\n" in page
