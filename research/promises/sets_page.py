"""The tables and the figure of docs/sealed-sets.md, from the coverage and size of sets at sealed clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from statistics import fmean, stdev
from typing import Any

from research import drawing
from research.markdown import table
from research.promises.verdict import p_value
from research.significance import holm
from wafl.report.plotting import COLORS

Row = Mapping[str, Any]
SETS = ("pooled", "example", "client")


def tables(numbers: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, str]:
    """Return each table of the page by its name."""
    rows: list[Row] = numbers["rows"]
    return {
        "sealed-sets": _verdict(rows, about, numbers["absent"]),
        "sealed-sets-summary": _summary(rows, about),
        "sealed-sets-tasks": _by_task(rows, about),
    }


def kept(row: Row, coverage: float) -> int:
    """Return how many sealed clients have at least this share of their labels covered."""
    return sum(value >= coverage - 1e-12 for value in row["covered"])


def groups(rows: Sequence[Row], about: Mapping[str, Any], name: str) -> dict[tuple[str, float], dict[str, list[Row]]]:
    """Return the folds of one kind of sets by method and radius, and by task."""
    result: dict[tuple[str, float], dict[str, list[Row]]] = {}
    for method in about["methods"]:
        for radius in about["radii"]:
            tasks = result.setdefault((method, radius), {})
            for row in rows:
                if (row["method"], row["radius"], row["sets"]) == (method, radius, name):
                    tasks.setdefault(row["task"], []).append(row)
    return result


def failed_tasks(tasks: Mapping[str, Sequence[Row]], about: Mapping[str, Any]) -> dict[str, float]:
    """Return the p-value of each task after Holm's procedure: too few sealed clients with the promised coverage."""
    alone: list[float] = []
    for folds in tasks.values():
        values: list[float] = []
        for row in folds:
            count, level = row["calibration"], Fraction(str(row["confidence"]))
            rank = math.ceil(level * (count + 1))
            values.append(p_value(kept(row, about["coverage"]), len(row["covered"]), count, rank))
        alone.append(min(1.0, len(values) * min(values)))
    return dict(zip(tasks, holm(alone), strict=True))


def gaps(tasks: Mapping[str, Sequence[Row]]) -> list[float]:
    """Return of each task the mean over its sealed clients of the coverage minus the promised one."""
    return [fmean(value - row["promised"] for row in folds for value in row["covered"]) for folds in tasks.values()]


def _verdict(rows: Sequence[Row], about: Mapping[str, Any], absent: Mapping[str, str]) -> str:
    count = len({row["task"] for row in rows})
    lines: list[str] = []
    wrong: list[str] = []
    for (method, radius), tasks in groups(rows, about, "client").items():
        adjusted = failed_tasks(tasks, about)
        failed = [task for task, value in adjusted.items() if value < about["verdict"]["level"]]
        wrong += [f"{task} ({method}, radius {radius:g}, client)" for task in failed]
        least = min(adjusted, key=adjusted.__getitem__)
        lines.append(
            f"- `client`, {method}, radius {radius:g}: after Holm's procedure, the smallest p-value is "
            f"{adjusted[least]:.2g} ({least})."
        )
    for (method, radius), tasks in groups(rows, about, "example").items():
        values = gaps(tasks)
        mean = fmean(values)
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        if mean < -2.0 * error:
            wrong.append(f"all tasks ({method}, radius {radius:g}, example)")
        lines.append(
            f"- `example`, {method}, radius {radius:g}: coverage minus the promise is {100.0 * mean:+.1f} ± "
            f"{100.0 * error:.1f} points (mean and standard error over tasks)."
        )
    head = f"Promises failed: {', '.join(wrong)}" if wrong else f"No promise failed on any of {count} tasks"
    if absent:
        lines.append(f"- Not measured, since their data are not here: {', '.join(absent)}.")
    return "\n".join([f"**{head}.**\n", *lines])


def _summary(rows: Sequence[Row], about: Mapping[str, Any]) -> str:
    cells: list[list[str]] = []
    for radius in about["radii"]:
        for name in SETS:
            for method in about["methods"]:
                tasks = groups(rows, about, name)[method, radius]
                cells.append([f"{radius:g}", name, method, *_means(tasks, about["coverage"])])
    head = ["radius", "sets", "model", "labels covered (%)", "clients covered (%)", "classes (%)", "full sets (%)"]
    return table(head, cells)


def _means(tasks: Mapping[str, Sequence[Row]], coverage: float) -> list[str]:
    """Return the means over tasks: coverage, clients with enough of it, size and full sets."""
    sealed = [[value for row in folds for value in row["covered"]] for folds in tasks.values()]
    clients = [
        sum(kept(row, coverage) for row in folds) / sum(len(row["covered"]) for row in folds)
        for folds in tasks.values()
    ]
    sizes = [
        fmean(size / row["classes"] for row in folds for size in row["sizes"])
        for folds in tasks.values()
        if folds[0]["classes"]
    ]
    full = [fmean(row["full"] for row in folds) for folds in tasks.values()]
    return [f"{100.0 * fmean(values):.1f}" for values in (map(fmean, sealed), clients, sizes, full)]


def _by_task(rows: Sequence[Row], about: Mapping[str, Any]) -> str:
    cells: list[list[str]] = []
    method = about["methods"][0]
    for task in dict.fromkeys(row["task"] for row in rows):
        for name in SETS:
            line = [task, name]
            for radius in about["radii"]:
                folds = groups(rows, about, name)[method, radius][task]
                hits, total = (sum(values) for values in zip(*_counts(folds, about["coverage"]), strict=True))
                sizes = [size for row in folds for size in row["sizes"]]
                size = "infinite" if None in sizes else f"{fmean(sizes):.3g}"
                line += [f"{hits} of {total}", f"{100.0 * fmean(v for row in folds for v in row['covered']):.1f}", size]
            cells.append(line)
    head = ["task", "sets"]
    for radius in about["radii"]:
        head += [f"clients covered, radius {radius:g}", "labels (%)", "size"]
    return table(head, cells)


def _counts(folds: Sequence[Row], coverage: float) -> list[tuple[int, int]]:
    return [(kept(row, coverage), len(row["covered"])) for row in folds]


def draw(rows: Sequence[Row], about: Mapping[str, Any]) -> Any:
    """Draw the share of sealed clients with the promised coverage, task by task, at rest and attacked."""
    from matplotlib.figure import Figure

    tasks, method = list(dict.fromkeys(row["task"] for row in rows)), about["methods"][0]
    figure = Figure(figsize=(drawing.WIDTH, 0.34 * len(tasks) + 1.6), layout="constrained")
    panels: Any = figure.subplots(1, len(about["radii"]), sharey=True, squeeze=False)
    for axes, radius in zip(panels[0], about["radii"], strict=True):
        for index, name in enumerate(SETS):
            folds = groups(rows, about, name)[method, radius]
            counts = [
                [sum(each) for each in zip(*_counts(folds[task], about["coverage"]), strict=True)] for task in tasks
            ]
            shares = [100.0 * hits / total for hits, total in counts]
            axes.plot(shares, range(len(tasks)), "os^"[index], color=COLORS[4 + index], label=name)
        axes.axvline(90.0, color="gray", linestyle="--", linewidth=1.6)
        axes.set_title("examples as they are" if radius == 0 else f"examples moved by {radius:g}")
        axes.set_yticks(range(len(tasks)), tasks)
        axes.grid(axis="y", linewidth=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0, 0].invert_yaxis()
    figure.supxlabel(f"sealed clients with at least {about['coverage']:.0%} of their labels covered (%)")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return figure
