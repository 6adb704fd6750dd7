"""Draw the figures of certified-frontier.md, few-examples.md and sealed-sets.md in docs from docs/evidence.

``python -m research pages`` calls it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from research.promises import sets_page
from research.registered import certified_frontier, few_examples
from research.registration import registered
from wafl.report.plotting import COLORS, MARKERS

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"


def main() -> None:
    """Draw all figures."""
    for name, draw in DRAWN.items():
        path = ROOT / "docs" / "evidence" / f"{name}.json"
        if path.exists():
            figure = draw(json.loads(path.read_bytes())["rows"], registered(name)[0])
            figure.savefig(IMAGES / f"{name}.png", dpi=110, metadata={"Software": None})


def draw_frontiers(rows: Sequence[dict[str, Any]], about: dict[str, Any]) -> Figure:
    """Draw certified against clean error by size, means over splits; one panel for each task and norm."""
    ball = about["balls"].index(about["primary_ball"])
    cases = list(dict.fromkeys((row["kind"], row["task"]) for row in rows))
    figure = Figure(figsize=(2.6 * len(cases), 5.0), layout="constrained")
    panels: Any = figure.subplots(2, len(cases), squeeze=False)
    for across, (kind, task) in enumerate(cases):
        for down, norm in enumerate(certified_frontier.NORMS):
            axes = panels[down, across]
            if norm not in about[kind]["norms"]:
                axes.set_visible(False)
                continue
            here = [row for row in rows if (row["kind"], row["task"]) == (kind, task) and norm in row]
            for index, method in enumerate((certified_frontier.OURS, *certified_frontier.RIVALS)):
                of_method = [row for row in here if row["method"] == method and row["norm"] in (norm, "any")]
                by_size = [
                    [row for row in of_method if row["size"] == size]
                    for size in sorted({row["size"] for row in of_method})
                ]
                means = [
                    (100 * fmean(row["clean"] for row in each), 100 * fmean(row[norm][ball] for row in each))
                    for each in by_size
                    if len(each) == about["splits"]
                ]
                line = {"color": COLORS[index], "marker": MARKERS[index], "label": method, "markersize": 4}
                axes.plot(*zip(*means, strict=True), **line)
            axes.set_title(f"{task}, {kind}, l_{norm}", fontsize=9)
    figure.supxlabel("clean error, %")
    figure.supylabel("certified error, %")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return figure


def draw_regrets(rows: Sequence[dict[str, Any]], about: dict[str, Any]) -> Figure:
    """Draw the regret in log-loss by the number of examples, means over splits; one panel for each task."""
    tasks = [task for task in about["tasks"] if any(row["task"] == task for row in rows)]
    figure = Figure(figsize=(2.3 * len(tasks), 3.2), layout="constrained")
    panels: Any = figure.subplots(1, len(tasks), squeeze=False)
    for axes, task in zip(panels[0], tasks, strict=True):
        of_task = [row for row in rows if row["task"] == task]
        sizes = sorted({row["examples"] for row in of_task})
        values = [
            few_examples.regrets([row for row in of_task if row["examples"] == examples], "loss")[task].values()
            for examples in sizes
        ]
        for index, name in enumerate((few_examples.TUNED, *about["rules"])):
            means = [fmean(each[name] for each in splits) for splits in values]
            axes.plot(sizes, means, color=COLORS[index], marker=MARKERS[index], label=name, markersize=4)
        axes.set_xscale("log")
        axes.set_xticks(sizes, [str(examples) for examples in sizes])
        axes.minorticks_off()
        axes.axhline(0.0, color="gray", linewidth=0.8)
        axes.set_title(task, fontsize=9)
    figure.supxlabel("examples of a client")
    figure.supylabel("regret in log-loss")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return figure


DRAWN = {"certified-frontier": draw_frontiers, "few-examples": draw_regrets, "sealed-sets": sets_page.draw}
"""The function that draws each figure, from the rows of the numbers and the registration."""
