"""Draw the pictures of experiments from their numbers, without training."""

import json
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from research import drawing
from research.statistics import Mean, diverged, mean_of
from wafl.report.plotting import MARKERS, sequence

Rows = list[dict[str, Any]]
Numbers = Mapping[str, Any]
MEASURES = (("accuracy", "accuracy (%)"), ("loss", "loss (cross-entropy)"))
SIX = ("WAFL", "FedPGM", "FedFGSM", "DRFA", "AFL", "FedAvg")
"""The methods of the paper's figure 4."""
MANY = 300
"""The ratio of the ends of an axis from which only powers of ten have a number."""
DOMAINS = {target.upper(): f"tab-domains-{target}-fair.json" for target in ("usps", "mnist", "svhn")}
NAMES = {
    "DRFA": "DRFA",
    "AFL": "AFL",
    "examples": "FedAvg, by size",
    "uniform": "FedAvg, 1/m",
    "nearest": "nearest source",
    "mixture": "nearest mixture",
    "nearest-shaped": "WAFL, shaped ball",
}
"""The rows of the figure of domains, from the bottom up."""
DASHES = ("-", "--", ":", "-.")


def draw(numbers: Numbers, path: Path) -> Path | None:
    """Draw the results of an experiment and return the picture's path, or None if the experiment is a table."""
    panels = FIGURES[numbers["figure"]]
    if panels is None:
        return None
    with drawing.large():
        figure_of(numbers, panels).savefig(path, dpi=130)
    return path


def main(folder: Path) -> None:
    """Draw each figure of a folder from its numbers, and some again with the paper's six methods alone."""
    for path in sorted(folder.glob("fig-*.json")):
        numbers = json.loads(path.read_bytes())
        draw(numbers, path.with_suffix(".png"))
        if path.with_name(f"{path.stem}-six.png").exists() and (six := of_the_paper(numbers)):
            draw(six, path.with_name(f"{path.stem}-six.png"))
    draw_domains(folder)


def draw_domains(folder: Path) -> None:
    """Draw the accuracy on each unseen domain, tuned alike, as points with intervals: one panel per target."""
    with drawing.large():
        figure = domains_figure({target: json.loads((folder / name).read_bytes()) for target, name in DOMAINS.items()})
        figure.savefig(folder / "domains.png", dpi=130)


def domains_figure(targets: Mapping[str, Numbers]) -> Any:
    """Return a figure with one panel per target and one line per way of weighing or moving the sources."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(drawing.WIDTH, 3.6), layout="constrained")
    panels: Any = figure.subplots(1, len(targets), sharey=True)
    for axes, (target, numbers) in zip(panels, targets.items(), strict=True):
        methods = {row["label"]: row["method"] for row in numbers["rows"]}
        accuracy = means(numbers["rows"], "label", "accuracy")
        for index, label in enumerate(NAMES):
            mean, color = accuracy[label], drawing.method_color(methods[label])
            axes.errorbar(mean.value, index, xerr=mean.half, fmt="o", color=color, markersize=9, capsize=4)
        axes.set_title(target)
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(NAMES)), list(NAMES.values()))
    figure.supxlabel("accuracy on the domain that no client has (%)")
    return figure


def figure_of(numbers: Numbers, panels: Callable[[Numbers, Any], None]) -> Any:
    """Draw two panels side by side, with the legend below them."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(drawing.WIDTH, 4.0), layout="constrained")
    axes: Any = figure.subplots(1, 2)
    panels(numbers, axes)
    for each in axes:
        each.grid(alpha=0.3)
        for axis in (each.xaxis, each.yaxis):
            low, high = axis.get_view_interval()
            if "%" in axis.get_label_text() and high > 100.0:  # margins and intervals may exceed it, the numbers cannot
                axis.axes.set(**{f"{axis.axis_name}lim": (low, 100.0)})
        each.spines[["top", "right"]].set_visible(False)
    listed = zip(*axes[0].get_legend_handles_labels(), strict=True)
    if legend := sorted(listed, key=lambda each: isinstance(each[0], Line2D)):  # what is swept before what is constant
        names = [short(label) for _, label in legend]
        columns = 4 if max(map(len, names)) < 16 else 3 if max(map(len, names)) < 22 else 2
        figure.set_figheight(4.0 + 0.28 * math.ceil(len(legend) / columns))
        handles = [handle for handle, _ in legend]
        figure.legend(handles, names, frameon=False, loc="outside lower center", ncols=columns)
    seeds = len(numbers["seeds"])
    what = f"{numbers.get('data', numbers['part'])}, {numbers['protocol']} protocol, {seeds} seed{'s' * (seeds > 1)}"
    what += ", 95% intervals" if seeds > 1 else ""
    what += "" if numbers["scale"] == "full" else f", {numbers['scale']} scale"
    lost = diverged(numbers)
    figure.suptitle(f"{numbers['title']}\n{what}" + (f"\ndiverged: {', '.join(lost)}" if lost else ""))
    return figure


def short(label: str) -> str:
    """Return a line's label with shorter names of its options.

    >>> short("fedavg-regularized-weight_decay=0.001")
    'fedavg, L2 0.001'
    """
    for long, brief in {"-regularized-weight_decay=": ", L2 ", "-learning_rate=": ", rate "}.items():
        label = label.replace(long, brief)
    return label


def means(rows: Sequence[Mapping[str, Any]], by: str, value: str) -> dict[Any, Mean]:
    """Return the mean of one value of the rows over the seeds, by another value."""
    groups: dict[Any, list[float]] = {}
    for row in rows:
        if row.get(value) is not None:
            groups.setdefault(row[by], []).append(row[value])
    return {key: mean_of(values) for key, values in sorted(groups.items())}


def tested(numbers: Numbers, test: str, **where: Any) -> Rows:
    """Return the rows of a test that have these values."""
    return [
        row
        for row in numbers["rows"]
        if row.get("test") == test and all(row.get(key) == value for key, value in where.items())
    ]


def _lines(axes: Any, groups: Mapping[str, dict[Any, Mean]], methods: Sequence[str], scale: float = 1.0) -> None:
    """Draw a line per group in its method's color, with its own dashes and markers, and intervals side by side."""
    intervals = any(mean.half for points in groups.values() for mean in points.values())
    for index, ((label, points), method) in enumerate(zip(groups.items(), methods, strict=True)):
        aside = 0.7 * (index - (len(groups) - 1) / 2) if intervals else 0.0
        x, y = [scale * key + aside for key in points], [mean.value for mean in points.values()]
        bars = [mean.half or 0.0 for mean in points.values()] if intervals else None
        axes.errorbar(
            x, y, yerr=bars, label=label, color=drawing.method_color(method),
            linestyle=DASHES[methods[:index].count(method) % len(DASHES)], marker=MARKERS[index % len(MARKERS)],
            capsize=2, elinewidth=1.2, clip_on=False,
        )  # fmt: skip


def of_the_paper(numbers: Numbers) -> Numbers | None:
    """Return the numbers of the paper's six methods alone, with its l2 ball; None if there are no others."""
    balls = ("wafl-l2", "WAFL")
    ball = next((label for label in balls if any(row.get("label") == label for row in numbers["rows"])), None)
    names = {**{label: label for label in SIX[1:]}, ball: SIX[0]}
    rows = [{**row, "label": names[row["label"]]} for row in numbers["rows"] if row.get("label") in names]
    others = {row.get("label") for row in numbers["rows"]} - set(names)
    return {**numbers, "rows": rows} if others and {row["label"] for row in rows} == set(SIX) else None


def _attacked(numbers: Numbers, axes: Any) -> None:
    """Draw accuracy against the share of attacked clients, one line per method, and the loss beside it.

    A second attack at several shares takes the place of the loss, and begins at the clean accuracy of the first.
    """
    first, *others = numbers["tests"]
    labels = list(dict.fromkeys(row["label"] for row in numbers["rows"] if "test" in row))
    methods = [next(row["method"] for row in numbers["rows"] if row["label"] == label) for label in labels]
    clean = [row for row in tested(numbers, first) if row["attacked"] == 0]
    second = [name for name in others if len({row["attacked"] for row in tested(numbers, name)}) > 1]
    panels = [(first, MEASURES[0]), (second[0], MEASURES[0]) if second else (first, MEASURES[1])]
    for panel, (test, (value, name)) in zip(axes, panels, strict=True):
        rows = tested(numbers, test) + (clean if test != first else [])
        lines = {label: means([row for row in rows if row["label"] == label], "attacked", value) for label in labels}
        _lines(panel, lines, methods, scale=100.0)
        panel.set_xticks([100.0 * share for share in sorted({row["attacked"] for row in rows})])
        panel.set(xlabel=f"attacked clients (%)\n{attack_of(numbers['tests'][test])}", ylabel=name)


def attack_of(test: Mapping[str, Any]) -> str:
    """Return an attack with its norm, size and steps.

    >>> attack_of({"kind": "pgd", "epsilon": 0.3, "steps": 40})
    'PGD, l_inf, epsilon 0.3, 40 steps'
    """
    if test["kind"] == "none":
        return "no attack"
    if test["kind"] == "wasserstein":
        return f"worst distribution within W_2 (l2) {test['radius']:g}"
    norm = f"l{test['norm']}" if test.get("norm", "inf") != "inf" else "l_inf"
    name = {"pgd": "PGD", "fgsm": "FGSM", "autoattack": "AutoAttack"}[test["kind"]]
    work = {"steps": "steps", "queries": "queries of Square"}
    effort = [f"{test[key]} {words}" for key, words in work.items() if key in test]
    return ", ".join([name, norm, f"epsilon {test['epsilon']:g}", *effort])


def _by_gamma(numbers: Numbers, axes: Any) -> None:
    """Draw accuracy and loss against gamma; darker is attacked, and dashed is FedAvg, which has no gamma."""
    first = next(iter(numbers["tests"]))
    shares = sorted({row["attacked"] for row in tested(numbers, first)})
    ball, plain = (sequence(drawing.method_color(method), len(shares)) for method in ("WAFL", "FedAvg"))
    for panel, (value, name) in zip(axes, MEASURES, strict=True):
        for share, color, dashed in zip(shares, ball, plain, strict=True):
            rows = tested(numbers, first, attacked=share)
            what = "clean" if share == 0 else f"{share:.0%} attacked"
            _line(panel, means([row for row in rows if "gamma" in row], "gamma", value), color, f"WAFL, {what}")
            if flat := [row[value] for row in rows if "gamma" not in row]:
                mean = mean_of(flat)
                panel.axhline(mean.value, color=dashed, linestyle="--", label=f"FedAvg, {what}")
                if mean.half is not None:
                    low, high = mean.value - mean.half, mean.value + mean.half
                    panel.axhspan(low, high, color=dashed, alpha=0.12, linewidth=0)
        match = matching_gamma(numbers)
        if match is not None:
            panel.axvline(match, color="#888888", linestyle=":", label="the attack's length")
        if any("gamma" in row for row in numbers["rows"]):
            _logarithmic(panel.xaxis)
        panel.set(xlabel="gamma", ylabel=name)


def _line(axes: Any, points: Mapping[float, Mean], color: str, label: str | None = None) -> None:
    bars = [mean.half or 0.0 for mean in points.values()]
    axes.errorbar(
        list(points), [mean.value for mean in points.values()], yerr=bars if any(bars) else None, fmt="o-", color=color,
        label=label, capsize=2,
    )  # fmt: skip


def _logarithmic(axis: Any) -> None:
    """Make an axis logarithmic, with plain numbers at 1, and at 2 and 5 if there is room."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < MANY * low else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def matching_gamma(numbers: Numbers) -> float | None:
    """Return the gamma whose moves are as long as the attack's, measured or by the closest achieved radius in l2."""
    near = [row for row in numbers["rows"] if "gamma" in row and "matching_gamma" in row]
    if near:
        return min(near, key=lambda row: abs(math.log(row["gamma"] / row["matching_gamma"])))["matching_gamma"]
    length = numbers.get("attack_length")
    radii = means([row for row in numbers["rows"] if row.get("radius") and "gamma" in row], "gamma", "radius")
    return min(radii, key=lambda gamma: abs(radii[gamma].value - length)) if length and radii else None


def _radius(numbers: Numbers, axes: Any) -> None:
    """Draw the achieved radius against gamma, and accuracy against that radius."""
    rows = [row for row in numbers["rows"] if "gamma" in row and row.get("radius") is not None]
    radii = means(rows, "gamma", "radius")
    clean = means([row for row in rows if row["attacked"] == 0], "gamma", "accuracy")
    radius = "achieved radius\n" + textwrap.fill(f"({numbers['unit'].replace(' a pixel', ' of a pixel')})", 26)
    color = drawing.method_color("WAFL")
    _line(axes[0], radii, color)
    _line(axes[1], {radii[gamma].value: clean[gamma] for gamma in clean}, color)
    axes[0].set(xlabel="gamma", ylabel=radius)
    axes[1].set(xlabel=radius, ylabel="accuracy on clean data (%)")
    for axis in (axes[0].xaxis, axes[0].yaxis, axes[1].xaxis):
        _logarithmic(axis)


def _by_round(numbers: Numbers, axes: Any) -> None:
    """Draw accuracy and loss by round, clean and attacked."""
    first = next(iter(numbers["tests"]))
    shares = sorted({row["attacked"] for row in tested(numbers, first)})
    methods = list(dict.fromkeys(row["method"] for row in numbers["rows"]))
    for panel, (value, name) in zip(axes, MEASURES, strict=True):
        for method in methods:
            color = drawing.method_color(method)
            for share, dash in zip(shares, ("-", "--"), strict=False):
                points = means(tested(numbers, first, method=method, attacked=share), "rounds", value)
                what = "clean" if share == 0 else f"{share:.0%} attacked"
                middle, half = [mean.value for mean in points.values()], [mean.half or 0.0 for mean in points.values()]
                panel.plot(list(points), middle, dash, color=color, label=f"{method}, {what}")
                if any(half):
                    low, high = ([m + sign * h for m, h in zip(middle, half, strict=True)] for sign in (-1.0, 1.0))
                    panel.fill_between(list(points), low, high, color=color, alpha=0.12, linewidth=0)
        panel.set(xlabel="round", ylabel=name)


FIGURES: dict[str, Callable[[Numbers, Any], None] | None] = {
    "attacked": _attacked,
    "gamma": _by_gamma,
    "radius": _radius,
    "rounds": _by_round,
    "condition": None,
    "domains": None,
    "partition": None,
}
"""The function that draws each kind of experiment; None is a table."""
