"""Equations of the site: ``math`` blocks become MathML, which browsers draw by themselves, without a network."""

from __future__ import annotations

from typing import Any

from latex2mathml.converter import convert


def format_math(source: str, language: str, css_class: str, options: dict[str, Any], md: Any, **_: Any) -> str:
    """Format a block of math for pymdownx.superfences."""
    return f'<div class="{css_class}">{convert(source, display="block")}</div>'
