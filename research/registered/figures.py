"""Draw the figures of certified-frontier.md, few-examples.md and sealed-sets.md in docs from docs/evidence.

``python -m research pages`` calls it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from matplotlib.figure import Figure

from research import drawing
from research.promises import sets_page
from research.registered import certified_frontier, few_examples
from research.registration import registered
from wafl.base.norms import norm_name
from wafl.report.plotting import MARKERS, sequence

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
ACROSS = 3
"""The number of panels in a row."""


def main() -> None:
    """Draw all figures."""
    for name, draw in DRAWN.items():
        path = ROOT / "docs" / "evidence" / f"{name}.json"
        if path.exists():
            with drawing.large():
                figure = draw(json.loads(path.read_bytes())["rows"], registered(name)[0])
                figure.savefig(IMAGES / f"{name}.png", dpi=130, metadata={"Software": None})


def draw_frontiers(rows: Sequence[dict[str, Any]], about: dict[str, Any]) -> Figure:
    """Draw certified against clean error by size, means over splits; one panel for each task and norm."""
    ball = about["balls"].index(about["primary_ball"])
    cases = [
        (kind, task, norm)
        for norm in certified_frontier.NORMS
        for kind, task in dict.fromkeys((row["kind"], row["task"]) for row in rows)
        if norm in about[kind]["norms"]
    ]
    figure, panels = _panels(len(cases))
    for axes, (kind, task, norm) in zip(panels, cases, strict=True):
        here = [row for row in rows if (row["kind"], row["task"]) == (kind, task) and norm in row]
        for index, method in enumerate((certified_frontier.OURS, *certified_frontier.RIVALS)):
            of_method = [row for row in here if row["method"] == method and row["norm"] in (norm, "any")]
            by_size = [
                [row for row in of_method if row["size"] == size] for size in sorted({row["size"] for row in of_method})
            ]
            means = [
                (100 * fmean(row["clean"] for row in each), 100 * fmean(row[norm][ball] for row in each))
                for each in by_size
                if len(each) == about["splits"]
            ]
            axes.plot(
                *zip(*means, strict=True), color=drawing.method_color(method), marker=MARKERS[index], label=method
            )
        name = norm_name(certified_frontier.NORMS[norm])
        axes.set_title(f"{task}{' (network)' if kind == 'network' else ''}, {name}")
    return _labeled(figure, "clean error (%)", "certified error (%)")


def draw_regrets(rows: Sequence[dict[str, Any]], about: dict[str, Any]) -> Figure:
    """Draw the regret in log-loss by the number of examples, means over splits; one panel for each task."""
    tasks = [task for task in about["tasks"] if any(row["task"] == task for row in rows)]
    rules = dict(zip(about["rules"], sequence(drawing.method_color("WAFL"), len(about["rules"])), strict=True))
    colors = {few_examples.TUNED: drawing.method_color(few_examples.TUNED), **rules}
    figure, panels = _panels(len(tasks))
    for axes, task in zip(panels, tasks, strict=True):
        of_task = [row for row in rows if row["task"] == task]
        sizes = sorted({row["examples"] for row in of_task})
        values = [
            few_examples.regrets([row for row in of_task if row["examples"] == examples], "loss")[task].values()
            for examples in sizes
        ]
        for index, (name, color) in enumerate(colors.items()):
            means = [fmean(each[name] for each in splits) for splits in values]
            axes.plot(sizes, means, color=color, marker=MARKERS[index], label=name)
        axes.set_xscale("log")
        axes.set_xticks(sizes, [str(examples) for examples in sizes])
        axes.minorticks_off()
        axes.axhline(0.0, color="gray", linewidth=0.8)
        axes.set_title(task)
    return _labeled(figure, "examples of a client", "regret in log-loss")


def _panels(count: int) -> tuple[Figure, list[Any]]:
    """Return a figure with this many panels, three in a row."""
    lines = math.ceil(count / ACROSS)
    figure = Figure(figsize=(drawing.WIDTH, 2.4 * lines + 0.8), layout="constrained")
    panels: list[Any] = list(cast(Any, figure.subplots(lines, ACROSS, squeeze=False)).flat)
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]


def _labeled(figure: Figure, across: str, up: str) -> Figure:
    """Return a figure with labels of the axes and one legend for all panels."""
    figure.supxlabel(across)
    figure.supylabel(up)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return figure


DRAWN = {"certified-frontier": draw_frontiers, "few-examples": draw_regrets, "sealed-sets": sets_page.draw}
"""The function that draws each figure, from the rows of the numbers and the registration."""
