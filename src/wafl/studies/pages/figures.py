"""Draw the figures of a finished study from its results."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from wafl.base.conditions import attacked_clients
from wafl.base.files import TEMPORARY, remove_temporary
from wafl.report.plotting import Line, generalization, measure_against_attacked, measure_against_parameter
from wafl.studies.study import Study

Draw = Callable[[Path], Any]
"""A function that draws a figure to a path."""


def draw_figures(study: Study, results: Mapping[str, Any], *, missing: bool = False) -> list[Path]:
    """Draw all figures for which the study has numbers, or only ``missing`` ones; return their paths."""
    folder, figures = study.folder.figures, _figures(study, results)
    if missing:
        figures = {name: draw for name, draw in figures.items() if not (folder / name).exists()}
    if figures:
        folder.mkdir(exist_ok=True)
        remove_temporary(folder)
    for name, draw in figures.items():  # in a temporary folder first, so that no incomplete figure is ever visible
        with TemporaryDirectory(prefix=".", suffix=TEMPORARY, dir=folder) as temporary:
            draw(Path(temporary, name))
            Path(temporary, name).replace(folder / name)
    return [folder / name for name in figures]


def _figures(study: Study, results: Mapping[str, Any]) -> dict[str, Draw]:
    """Return a drawing function for each figure with numbers, by its file name."""
    measure = results["measure"]
    rows = {label: row for label, row in results["methods"].items() if "clean" in row}
    if not rows:
        return {}
    unit = "accuracy (%)" if measure == "accuracy" else "loss"
    lines = {
        label: _line([0.0, *(100.0 * float(s) for s in row["attacked"])], list(_tests(row).values()))
        for label, row in rows.items()
    }
    methods = [row["method"]["name"] for row in rows.values()]
    attack, unseen = results["attack"], study.plan.unseen is not None or study.plan.clients.roster.unseen
    figures, test = dict[str, Draw](), attack or "clean data"
    if attack or not unseen:
        figures[f"{measure}.png"] = partial(measure_against_attacked, lines, unit, test, methods=methods)
    for parameter, panels in _swept(study, rows).items():
        figures[f"{measure}-{parameter}.png"] = partial(measure_against_parameter, panels, parameter, unit, test)
    if unseen:
        figures["unseen.png"] = partial(generalization, {**results, "methods": rows})
    return figures


def _swept(study: Study, rows: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Line]]]:
    """Return one line per test, by parameter and method, for methods with one swept number."""
    panels: dict[str, dict[str, dict[str, Line]]] = {}
    for entry in study.plan.entries:
        if len(entry.grid) != 1:
            continue
        ((parameter, values),) = entry.grid.items()
        kept = {value: rows[label] for value in values if (label := f"{entry.name}-{parameter}={value}") in rows}
        if len(kept) < 2 or not all(isinstance(value, int | float) for value in kept):
            continue
        ordered = dict(sorted(kept.items()))
        tests = _tests(next(iter(ordered.values())))
        panels.setdefault(parameter, {})[entry.title] = {
            test: _line(list(ordered), [_tests(row)[test] for row in ordered.values()]) for test in tests
        }
    return panels


def _tests(row: Mapping[str, Any]) -> dict[str, Any]:
    attacked = {attacked_clients(float(share)): value for share, value in row["attacked"].items()}
    return {"clean": row["clean"], **attacked}


def _line(x: Sequence[float], values: Sequence[Mapping[str, Any]]) -> Line:
    seeds = min(len(value["seeds"]) for value in values)
    std = [value["std"] for value in values] if seeds > 1 else None
    return Line(list(x), [value["mean"] for value in values], std)
