"""The lines of ``metrics.jsonl`` as pages read them: which run each is about, and who failed in its round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wafl.base.errors import FolderError
from wafl.base.json_types import check_types, parsed_table
from wafl.config.experiment import Experiment
from wafl.studies.pace import point_of

LARGEST = 256 * 2**20
"""The most bytes of a file that is read for a page."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rounds in ``metrics.jsonl``; the last line may be in the making, and what is no round is passed over."""
    if not path.is_file():
        return []
    if path.stat().st_size > LARGEST:
        raise FolderError(f"{path} has more than {LARGEST >> 20} MiB: it is too large for a page")
    found: list[dict[str, Any]] = []
    for line in path.read_bytes().splitlines():
        try:
            row = parsed_table(line)
            check_types(row, {"method": str, "round": int})
            found.append(row)
        except ValueError:
            continue
    return found


def labels_of(row: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """What the run of a line is called: its method, and what was swept."""
    name = str(row["method"]) + "".join(f"-{key}={value}" for key, value in point_of(row).items() if key != "seed")
    return titles.get(name, name)


def titles_of(results: Mapping[str, Any], experiment: Experiment | None) -> dict[str, str]:
    """The titles of methods in tables, by their folders' names: WAFL, not wafl."""
    found = {label.lower(): label for label in results.get("methods", {})}
    for method in experiment.methods if experiment is not None else ():
        if method.label == method.method.lower():
            found.setdefault(method.label, method.method)
    return found


def cohort_of(row: Mapping[str, Any]) -> list[int]:
    """The clients that were asked to train in the round of a line."""
    asked: Any = row.get("cohort")
    return [each for each in asked if isinstance(each, int) and each >= 0] if isinstance(asked, list) else []  # pyright: ignore[reportUnknownVariableType]


def absent_in(row: Mapping[str, Any]) -> dict[int, str]:
    """The clients that were asked to train in the round of a line and did not count, each with the reason."""
    pairs: Any = row.get("excluded")
    found: dict[int, str] = {}
    for pair in pairs if isinstance(pairs, list) else []:  # pyright: ignore[reportUnknownVariableType]
        match pair:
            case [int(client), str(why)] if not why.startswith("loss: "):
                found[client] = why
            case _:
                pass
    return found
