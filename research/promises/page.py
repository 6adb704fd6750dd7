"""The tables and the figure of docs/promises.md, from bounds and measured values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from research import drawing
from research.experiment import ROOT
from research.markdown import table
from research.promises.verdict import verdicts
from research.registration import registered

DOCS = ROOT / "docs"
Verdicts = Sequence[Mapping[str, Any]]
WORDS = {
    "loss": "the loss",
    "error": "the error rate",
    "moved": "the loss under attack",
    "own": "the error rate of the distribution",
}


def read_opened() -> dict[str, Any]:
    """Return the bounds for sealed clients and their measured values."""
    return json.loads((DOCS / "promises" / "opened.json").read_bytes())


def page() -> dict[str, str]:
    """Return the tables of the page by name."""
    return tables(read_opened(), registered("promises")[0])


def tables(opened: Mapping[str, Any], registration: Mapping[str, Any]) -> dict[str, str]:
    """Return each table of the page, by its name."""
    judged = verdicts(opened["rows"], registration["verdict"]["level"])
    by_kind = {kind: list(tasks) for kind, tasks in _kinds(registration).items()}
    return {
        "promises-verdict": _verdict(judged, registration),
        "promises": _summary(judged, by_kind),
        **{f"promises-{statement}": _by_task(judged, statement, by_kind) for statement in ("loss", "error", "moved")},
        "promises-own": _own(judged, opened["rows"]),
    }


def _kinds(registration: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    return {"natural": list(registration["tasks"]), "made from MNIST": list(registration["made"]["tasks"])}


def _verdict(judged: Verdicts, registration: Mapping[str, Any]) -> str:
    """Return the verdict on the primary statement, in words."""
    primary = [each for each in judged if each["statement"] == registration["primary"]]
    failed = [f"{each['task']} ({each['method']})" for each in primary if each.get("failed")]
    tasks = len({each["task"] for each in primary if each["sealed"]})
    what = f"Promises failed: {', '.join(failed)}, of" if failed else "No promise failed on any of"
    parts = [f"**{what} {tasks} tasks.**\n"]
    goal, enough = (registration["verdict"][key] for key in ("tightness_goal", "tightness_clients"))
    for method in registration["methods"]:
        of_method = [each for each in primary if each["method"] == method and each["sealed"]]
        least = min(of_method, key=lambda each: each["p"])
        large = [each for each in of_method if each["sealed"] >= enough]
        loose = [f"{each['task']} {each['tightness']:.2f}" for each in of_method if each["tightness"] > goal]
        kept = sum(each["tightness"] <= goal for each in large)
        parts.append(
            f"- {method}: for {_covered(of_method)}, the loss was within its bound; {_expected(of_method)} were "
            f"expected. The smallest p-value of a task is {_p(least['p'])} ({least['task']}), or {_p(least['p_holm'])} "
            f"after Holm's procedure. The goal was a tightness of at most {goal:g}: {kept} of {len(large)} tasks with "
            f"at least {enough} clients meet it. Tasks of any size that miss it: {', '.join(loose) or 'none'}."
        )
    counts = [f"{fewer} of {total}" for fewer, total in (smaller(judged, each) for each in ("loss", "moved"))]
    parts.append(
        f"- The promised loss is smaller for WAFL than for FedAvg on {counts[0]} tasks, and under attack on "
        f"{counts[1]}."
    )
    return "\n".join(parts)


def smaller(judged: Verdicts, statement: str) -> tuple[int, int]:
    """Return the number of tasks on which WAFL promises less than FedAvg, averaged over folds, and of all tasks."""
    result = {
        (each["task"], each["method"]): each for each in judged if each["statement"] == statement and each["sealed"]
    }
    tasks = {task for task, _ in result}
    means = [[mean(result[task, method]["promised"]) for method in ("WAFL", "FedAvg")] for task in tasks]
    return sum(ours < theirs for ours, theirs in means), len(tasks)


def _covered(rows: Verdicts) -> str:
    covered, sealed = (sum(each[key] for each in rows) for key in ("covered", "sealed"))
    return f"{covered / sealed:.1%} of {sealed:,} sealed clients"


def _expected(rows: Verdicts) -> str:
    return f"{sum(each['expected'] * each['sealed'] for each in rows) / sum(each['sealed'] for each in rows):.1%}"


def _summary(judged: Verdicts, by_kind: Mapping[str, Sequence[str]]) -> str:
    """Return the table of the loss, and the loss under attack: natural and made tasks, by method."""
    rows: list[list[str]] = []
    for statement in ("loss", "moved"):
        for kind, tasks in by_kind.items():
            for method in dict.fromkeys(each["method"] for each in judged):
                group = [
                    each
                    for each in judged
                    if (each["statement"], each["method"]) == (statement, method)
                    and each["task"] in tasks
                    and each["sealed"]
                ]
                if group:
                    at = sum(each["confidence"] * each["sealed"] for each in group) / sum(
                        each["sealed"] for each in group
                    )
                    rows.append(
                        [
                            f"{WORDS[statement]}, {kind}",
                            method,
                            f"{len(group)}",
                            f"{at:.1%}",
                            _expected(group),
                            _covered(group).removesuffix(" sealed clients"),
                            f"{sum(each['failed'] for each in group)}",
                            f"{median(each['tightness'] for each in group):.2f}",
                        ]
                    )
    return table(["about", "method", "tasks", "promised", "expected", "covered", "failures", "tightness, median"], rows)


def _by_task(judged: Verdicts, statement: str, by_kind: Mapping[str, Sequence[str]]) -> str:
    rows: list[list[str]] = []
    for task in (task for tasks in by_kind.values() for task in tasks):
        for each in judged:
            if (each["statement"], each["task"]) != (statement, task):
                continue
            if not each["sealed"]:
                rows.append([task, each["method"], f"no promise: {each['says_nothing']}", "", "", "", ""])
                continue
            low, high = each["interval"]
            rows.append(
                [
                    task,
                    each["method"],
                    _between(each["promised"]) + f" ({each['confidence']:.0%})",
                    f"{each['covered']} of {each['sealed']}",
                    f"{low:.0%} to {high:.0%}",
                    f"{_p(each['p'])}, {_p(each['p_holm'])}" + (" **failed**" if each["failed"] else ""),
                    f"{each['tightness']:.2f}",
                ]
            )
    heads = ["task", "method", "promised", "covered", "bootstrap", "p-value: alone, after Holm", "tightness"]
    return table(heads, rows)


def _own(judged: Verdicts, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the promises about clients' distributions; these are unknown, so there is no verdict."""
    cells: list[list[str]] = []
    classes = {row["task"]: row.get("classes") for row in rows}
    for each in (each for each in judged if each["statement"] == "own"):
        if not each["sealed"]:
            cells.append([each["task"], each["method"], f"no promise: {each['says_nothing']}", ""])
            continue
        guess = 1.0 - 1.0 / (classes[each["task"]] or 2)
        vacuous = sum(value >= guess for value in each["promised"])
        note = f" **vacuous** in {vacuous} of {len(each['promised'])} folds" if vacuous else ""
        promise = f"{_between(each['promised'])} ({each['confidence']:.0%}){note}"
        cells.append([each["task"], each["method"], promise, f"{each['covered']} of {each['sealed']}"])
    return table(["task", "method", "promised error rate", "measured error rates that are no larger"], cells)


def _between(values: Sequence[float]) -> str:
    low, high = (f"{end:.3g}" for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _p(value: float) -> str:
    return f"{value:.2g}" if value < 0.995 else "1"


def draw(path: Path) -> None:
    """Draw measured values over bounds, one mark per sealed client, task by task."""
    from matplotlib.figure import Figure

    registration = registered("promises")[0]
    tasks = [task for tasks in _kinds(registration).values() for task in tasks]
    rows = [row for row in read_opened()["rows"] if row["statement"] == registration["primary"] and row["promised"]]
    tasks = [task for task in tasks if any(row["task"] == task for row in rows)]
    figure = Figure(figsize=(drawing.WIDTH, 0.42 * len(tasks) + 1.4), layout="constrained")
    axes: Any = figure.subplots()
    for aside, method in zip((-0.17, 0.17), registration["methods"], strict=True):
        for index, task in enumerate(tasks):
            ratios = [
                value / row["promised"]
                for row in rows
                if (row["task"], row["method"]) == (task, method)
                for value in row["happened"]
            ]
            label = method if index == 0 else None
            height = [index + aside] * len(ratios)
            axes.plot(ratios, height, "|", color=drawing.method_color(method), label=label)
    axes.axvline(1.0, color="gray", linestyle="--")
    axes.set_yticks(range(len(tasks)), tasks)
    axes.invert_yaxis()
    axes.set_xlim(left=0.0)
    axes.set_xlabel("loss of a sealed client over its bound\n(right of the line: not covered)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=130, metadata={"Software": None})
