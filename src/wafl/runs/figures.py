"""The figures of a finished study, from its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wafl.plotting import Line, generalization, measure_against_attacked, measure_against_parameter
from wafl.runs.study import Study


def draw_figures(study: Study, results: Mapping[str, Any]) -> list[Path]:
    """Write every figure that the study has numbers for; returns their paths."""
    folder, measure = study.folder.figures, results["measure"]
    rows = {label: row for label, row in results["methods"].items() if "clean" in row}
    if not rows:
        return []
    folder.mkdir(exist_ok=True)
    found = [folder / f"{measure}.png"]
    unit = "accuracy (%)" if measure == "accuracy" else "loss"
    lines = {
        label: _line([0.0, *(100.0 * float(s) for s in row["attacked"])], list(_tests(row).values()))
        for label, row in rows.items()
    }
    methods = [row["method"]["name"] for row in rows.values()]
    measure_against_attacked(lines, unit, results["attack"] or "clean data", found[0], methods)
    for parameter, panels in _swept(study, rows).items():
        found.append(folder / f"{measure}-{parameter}.png")
        measure_against_parameter(panels, parameter, unit, found[-1])
    if study.plan.unseen is not None:
        found.append(folder / "unseen.png")
        generalization({**results, "methods": rows}, found[-1])
    return found


def _swept(study: Study, rows: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Line]]]:
    """By parameter and method: one line per test, for methods of which one number is swept."""
    found: dict[str, dict[str, dict[str, Line]]] = {}
    for entry in study.plan.entries:
        if len(entry.grid) != 1:
            continue
        ((parameter, values),) = entry.grid.items()
        kept = {value: rows[label] for value in values if (label := f"{entry.name}-{parameter}={value}") in rows}
        if len(kept) < 2 or not all(isinstance(value, int | float) for value in kept):
            continue
        ordered = dict(sorted(kept.items()))
        tests = _tests(next(iter(ordered.values())))
        name = entry.method.name if entry.name == entry.method.name.lower() else entry.name
        found.setdefault(parameter, {})[name] = {
            test: _line(list(ordered), [_tests(row)[test] for row in ordered.values()]) for test in tests
        }
    return found


def _tests(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "clean": row["clean"],
        **{f"{float(share):.0%} attacked": value for share, value in row["attacked"].items()},
    }


def _line(x: Sequence[float], values: Sequence[Mapping[str, Any]]) -> Line:
    seeds = min(len(value["seeds"]) for value in values)
    std = [value["std"] for value in values] if seeds > 1 else None
    return Line(list(x), [value["mean"] for value in values], std)
