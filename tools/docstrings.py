"""Docstrings as the site's reference shows them: a doctest is a block of code, a role of Sphinx is a name."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

DOCTEST = re.compile(r"(?:^[ ]*>>> .*(?:\n(?![ ]*$).*)*\n?)+", re.MULTILINE)
ROLE = re.compile(r":\w+:`~?([\w.]+)`")


class Docstrings(Extension):
    """Rewrites each docstring once, when its object is found."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            text = ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = DOCTEST.sub(lambda match: f"```python\n{match[0].rstrip()}\n```\n", text)
