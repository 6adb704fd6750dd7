"""The pages of the project: their text, anchors and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from markdown.extensions.toc import slugify, unique

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for part in ("*.md", "docs/**/*.md", "examples/**/*.md")
    for path in ROOT.glob(part)
)
LINK = re.compile(r"(!?)\[((?:[^][]|\[[^][]*\])*)\]\(([^()\s]+)\)")


@cache
def text_of(page: str) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^( *)```.*?^\1```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@cache
def anchors(page: str) -> set[str]:
    """Return the anchors of a page's sections, as its site has them."""
    result = set[str]()
    for title in re.findall(r"^#+ +(.+?)\s*$", text_of(page), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", title)
        unique(slugify(plain, "-"), result)
    return result | set(re.findall(r'\bid="([^"]+)"', text_of(page)))


def links(page: str) -> Iterator[tuple[bool, str, str]]:
    """Yield whether each link is an image, its text, and where it leads."""
    for image, text, target in LINK.findall(text_of(page)):
        yield bool(image), text, target
    for tag in re.findall(r"<img [^>]*>", text_of(page)):
        attributes = dict(re.findall(r'(\w+)="([^"]*)"', tag))
        yield True, attributes.get("alt", ""), attributes["src"]
