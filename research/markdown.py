"""Pieces of Markdown that several pages use."""

from __future__ import annotations

from collections.abc import Sequence

from research.statistics import Mean


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def signed(mean: Mean) -> str:
    """Format a difference with its interval, in bold if the interval excludes 0.

    >>> signed(Mean(1.5, 0.5, 5)), signed(Mean(-0.2, 0.5, 5))
    ('**+1.5 ± 0.5**', '-0.2 ± 0.5')
    """
    text = f"{mean.value:+.1f}" + ("" if mean.half is None else f" ± {mean.half:.1f}")
    return f"**{text}**" if mean.half is not None and abs(mean.value) > mean.half else text


def first_shown(text: str) -> str:
    """Return a report with its verdict and its first table; the other tables are folded."""
    parts = text.split("\n\n")
    first = next(index for index, part in enumerate(parts) if part.startswith("|"))
    return "\n\n".join([*parts[: first + 1], folded("More tables", "\n\n".join(parts[first + 1 :]))])


def folded(title: str, text: str) -> str:
    """Return a text that is shown when its title is clicked."""
    return f'<details markdown="1"><summary>{title}</summary>\n\n{text}\n\n</details>'
