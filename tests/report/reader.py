"""A parser of pages that keeps their tags and scripts."""

from __future__ import annotations

import json
from html.parser import HTMLParser


class Reader(HTMLParser):
    """Counts tags and keeps the text of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[str, str]] = []
        self._script: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self._script = dict(attrs).get("type") or "text/javascript"

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts.append((self._script, data))
            self._script = None

    def charts(self) -> list[dict[str, object]]:
        return [json.loads(text) for kind, text in self.scripts if kind == "application/json"]
