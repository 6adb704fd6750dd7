"""Pictures from the numbers of an experiment alone: nothing is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from wafl.evidence.statistics import Mean, mean_of
from wafl.plotting import MARKERS, styles

Rows = list[dict[str, Any]]
Numbers = Mapping[str, Any]


def draw(numbers: Numbers, path: Path) -> Path | None:
    """Draw what an experiment gave; None if it is a table.

    Args:
        numbers: what ``wafl reproduce`` wrote.
        path: the picture to write.
    """
    panels = FIGURES[numbers["figure"]]
    if panels is None:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 4.0), layout="constrained")
    axes: Any = figure.subplots(1, 2)
    panels(numbers, axes)
    for each in axes:
        each.grid(alpha=0.3)
        each.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, frameon=False, loc="outside right center")
    seeds = len(numbers["seeds"])
    what = f"{numbers.get('data', numbers['part'])}, {numbers['protocol']} protocol, {seeds} seed{'s' * (seeds > 1)}"
    what += "" if numbers["scale"] == "full" else f", {numbers['scale']} scale"
    figure.suptitle(f"{numbers['title']} ({what})", fontsize=11)
    figure.savefig(path, dpi=130)
    return path


def means(rows: Sequence[Mapping[str, Any]], by: str, value: str) -> dict[Any, Mean]:
    """The mean of a value over the seeds, by another."""
    found: dict[Any, list[float]] = {}
    for row in rows:
        if row.get(value) is not None:
            found.setdefault(row[by], []).append(row[value])
    return {key: mean_of(values) for key, values in sorted(found.items())}


def tested(numbers: Numbers, test: str, **where: Any) -> Rows:
    """The rows of a test that have these values."""
    return [
        row
        for row in numbers["rows"]
        if row.get("test") == test and all(row.get(key) == value for key, value in where.items())
    ]


def _lines(axes: Any, groups: Mapping[str, dict[Any, Mean]], methods: Sequence[str], scale: float = 1.0) -> None:
    looks = zip(groups.items(), styles(list(groups), methods), cycle(MARKERS))
    for (label, points), style, marker in looks:
        x = [scale * key for key in points]
        y, bars = [mean.value for mean in points.values()], [mean.half or 0.0 for mean in points.values()]
        axes.errorbar(
            x, y, yerr=bars if any(bars) else None, label=label, color=style.color, marker=marker, markersize=5,
            linewidth=1.4, capsize=2,
        )  # fmt: skip


def _attacked(numbers: Numbers, axes: Any) -> None:
    """Accuracy and loss against the share of attacked clients, one line per method."""
    first = next(iter(numbers["tests"]))
    labels = list(dict.fromkeys(row["label"] for row in numbers["rows"] if "test" in row))
    methods = [next(row["method"] for row in numbers["rows"] if row["label"] == label) for label in labels]
    for panel, (value, name) in zip(axes, (("accuracy", "accuracy (%)"), ("loss", "loss")), strict=True):
        lines = {label: means(tested(numbers, first, label=label), "attacked", value) for label in labels}
        _lines(panel, lines, methods, scale=100.0)
        panel.set_xlabel(f"attacked clients (%), {first}")
        panel.set_ylabel(name)


def _by_gamma(numbers: Numbers, axes: Any) -> None:
    """Accuracy and loss against gamma, clean and attacked; what does not depend on gamma is a dashed line."""
    first = next(iter(numbers["tests"]))
    shares = sorted({row["attacked"] for row in tested(numbers, first)})
    for panel, (value, name) in zip(axes, (("accuracy", "accuracy (%)"), ("loss", "loss")), strict=True):
        for share, color in zip(shares, ("#0072B2", "#D55E00", "#009E73"), strict=False):
            rows = tested(numbers, first, attacked=share)
            what = "clean" if share == 0 else f"{share:.0%} attacked"
            swept = means([row for row in rows if "gamma" in row], "gamma", value)
            panel.plot(list(swept), [m.value for m in swept.values()], "o-", color=color, label=f"WAFL, {what}")
            if flat := [row[value] for row in rows if "gamma" not in row]:
                height = mean_of(flat).value
                panel.axhline(height, color=color, linestyle="--", linewidth=1.0, label=f"FedAvg, {what}")
        match = matching_gamma(numbers)
        if match is not None:
            panel.axvline(match, color="#56B4E9", linewidth=1.0, label="gamma that moves as far as the attack")
        if any("gamma" in row for row in numbers["rows"]):
            panel.set_xscale("log")
        panel.set_xlabel("gamma")
        panel.set_ylabel(name)


def matching_gamma(numbers: Numbers) -> float | None:
    """The swept gamma whose achieved radius is closest to the length of the attack in l2: epsilon sqrt(d)."""
    length = numbers.get("attack_length")
    radii = {row["gamma"]: row["radius"] for row in numbers["rows"] if row.get("radius") and "gamma" in row}
    return min(radii, key=lambda gamma: abs(radii[gamma] - length)) if length and radii else None


def _radius(numbers: Numbers, axes: Any) -> None:
    """The achieved radius against gamma, and accuracy against that radius."""
    rows = [row for row in numbers["rows"] if "gamma" in row and row.get("radius") is not None]
    radii = means(rows, "gamma", "radius")
    axes[0].plot(list(radii), [mean.value for mean in radii.values()], "o-", color="#0072B2")
    axes[0].set(xscale="log", yscale="log", xlabel="gamma", ylabel=f"achieved radius ({numbers['unit']})")
    clean = means([row for row in rows if row["attacked"] == 0], "gamma", "accuracy")
    axes[1].plot([radii[g].value for g in clean], [clean[g].value for g in clean], "o-", color="#0072B2")
    axes[1].set(xscale="log", xlabel=f"achieved radius ({numbers['unit']})", ylabel="accuracy on clean data (%)")


def _by_round(numbers: Numbers, axes: Any) -> None:
    """Accuracy and loss by round, clean and attacked."""
    first = next(iter(numbers["tests"]))
    shares = sorted({row["attacked"] for row in tested(numbers, first)})
    methods = list(dict.fromkeys(row["method"] for row in numbers["rows"]))
    for panel, (value, name) in zip(axes, (("accuracy", "accuracy (%)"), ("loss", "loss")), strict=True):
        for method, color in zip(methods, ("#D55E00", "#000000", "#0072B2"), strict=False):
            for share, dash in zip(shares, ("-", "--"), strict=False):
                points = means(tested(numbers, first, method=method, attacked=share), "rounds", value)
                what = "clean" if share == 0 else f"{share:.0%} attacked"
                panel.plot(
                    list(points), [m.value for m in points.values()], dash, color=color, marker=".",
                    label=f"{method}, {what}",
                )  # fmt: skip
        panel.set_xlabel("round")
        panel.set_ylabel(name)


FIGURES: dict[str, Callable[[Numbers, Any], None] | None] = {
    "attacked": _attacked,
    "gamma": _by_gamma,
    "radius": _radius,
    "rounds": _by_round,
    "domains": None,
    "partition": None,
}
"""How each kind of experiment is drawn; None is a table."""
