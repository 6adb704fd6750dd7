"""Draw matplotlib figures from arrays, without a display."""

import colorsys
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any, cast

from wafl.base.conditions import SPLITS, shorten, unseen_clients
from wafl.base.norms import norm_name
from wafl.methods import METHODS as NAMED

# Okabe and Ito's palette, whose colors stay distinct under the common kinds of color blindness.
COLORS = ("#D55E00", "#000000", "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7")
PALETTE = (
    "#D55E00", "#000000", "#B6992D", "#A0522D", "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#44AA99",
    "#117733", "#DDCC77", "#AA4499", "#661100", "#6699CC", "#17BECF", "#BCBD22", "#9467BD", "#7F9C6C", "#F28E8E",
    "#4E79A7", "#C49C94", "#882255", "#999933", "#888888", "#332288", "#8C564B", "#F1CE63", "#86BCB6", "#D37295",
    "#79706E", "#5778A4", "#B07AA1", "#59A14F", "#E15759",
)  # fmt: skip
"""The colors of the first named methods, in the order of their list; :func:`method_colors` computes further ones."""
GOLDEN = (5**0.5 - 1) / 2
"""The step between computed hues, as a fraction of the color wheel, which separates any number of hues."""
MARKERS = ("o", "s", "^", "v", "D", "P", "X")
OUTSIDE = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
"""The position of a legend: next to the figure."""

TEXT = 12
"""The size of all texts in points."""
BARS, BANDS = "bars: ± standard deviation over seeds", "bands: ± standard deviation over seeds"


def method_colors(names: Iterable[str]) -> dict[str, str]:
    """Return the color of each named method by its lower-case name; a new name at the end changes no other color."""
    colors: dict[str, str] = {}
    for index, name in enumerate(names):
        colors[name.lower()] = PALETTE[index] if index < len(PALETTE) else _computed_color(index - len(PALETTE))
    return colors


def _computed_color(index: int) -> str:
    """Return a color for the method at this index after the palette: a new hue, in one of three shades."""
    lightness = (0.35, 0.5, 0.65)[index % 3]
    red, green, blue = colorsys.hls_to_rgb(index * GOLDEN % 1.0, lightness, 0.7)
    return "#{:02X}{:02X}{:02X}".format(*(round(255 * level) for level in (red, green, blue)))


METHODS = method_colors(NAMED)
"""The color of each method, in every figure."""


def color_of(label: str) -> str | None:
    """Return the color of the method that a label begins with, or None if it begins with no method's name.

    >>> color_of("WAFL, gamma 1") == color_of("wafl-gamma=2") == color_of("WAFL (l2)") == METHODS["wafl"]
    True
    """
    return METHODS.get(_family(label))


def styles(labels: Sequence[str], methods: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return the color and marker of each line; several lines of one method have shades, light to dark.

    ``methods`` are the methods' names; without them, labels begin with the name, as in ``wafl-gamma=1.0``.
    """
    families = [_family(name) for name in methods or labels]
    spare = [color for color in COLORS if color not in {METHODS.get(family) for family in families}] or list(COLORS)
    others = [family for family in dict.fromkeys(families) if family not in METHODS]
    base = {**METHODS, **{family: spare[index % len(spare)] for index, family in enumerate(others)}}
    order = list(dict.fromkeys(families))
    looks: list[dict[str, Any]] = []
    for index, family in enumerate(families):
        mates = families.count(family)
        shade = base[family] if mates == 1 else sequence(base[family], mates)[families[:index].count(family)]
        looks.append({"color": shade, "marker": MARKERS[order.index(family) % len(MARKERS)]})
    return looks


def sequence(color: str, count: int) -> list[str]:
    """Return ``count`` shades of a color, ending with the color itself."""
    from matplotlib.colors import to_hex, to_rgb

    full = to_rgb(color)
    strengths = [0.35 + 0.65 * index / max(count - 1, 1) for index in range(count)]
    return [to_hex(cast(Any, [1.0 - strength * (1.0 - value) for value in full])) for strength in strengths]


def _family(label: str) -> str:
    name = re.split(r"[-\s(,]", label.lower(), maxsplit=1)[0]
    return name if name in METHODS else label


@dataclass(frozen=True)
class Line:
    """A mean by x, and its standard deviation over seeds; None if there is one seed."""

    x: Sequence[float]
    mean: Sequence[float]
    std: Sequence[float] | None = None


def measure_against_attacked(
    lines: Mapping[str, Line], measure: str, title: str, path: Path | None = None, methods: Sequence[str] | None = None
) -> Any:
    """Plot the accuracy (or loss) of each method against the share of attacked clients, in percent."""
    figure, (axes,) = _figure()
    looks = styles(list(lines), methods)
    for index, ((name, line), style) in enumerate(zip(lines.items(), looks, strict=True)):
        axes.errorbar(
            [share + (0.35 * (index - len(lines) / 2) if line.std is not None else 0.0) for share in line.x],
            line.mean,
            yerr=line.std,
            label=name,
            markersize=7,
            linewidth=3.2 if index == 0 and style["color"] in METHODS.values() else 2.2,
            capsize=2,
            **style,
        )
    axes.set(xlabel="attacked clients (%)", ylabel=measure)
    deviations = any(line.std is not None for line in lines.values())
    axes.set_title(f"{title}\n{BARS}" if deviations else title)
    return _finish(figure, path)


def measure_against_parameter(
    panels: Mapping[str, Mapping[str, Line]], parameter: str, measure: str, title: str, path: Path | None = None
) -> Any:
    """Draw accuracy (or loss) against a swept parameter: panels by method, lines by test, bands over seeds.

    ``title`` describes the attack.
    """
    figure, row = _figure(max(5.5, 4.2 * len(panels)) + 1.5, 4.2, len(panels), sharey=True)
    for axes, (method, lines) in zip(row, panels.items(), strict=True):
        color = color_of(method) or COLORS[2]
        for (label, line), shade in zip(lines.items(), reversed(sequence(color, len(lines))), strict=True):
            axes.plot(line.x, line.mean, color=shade, marker="o", markersize=6, linewidth=2.4, label=label)
            if line.std is not None:
                low, high = ([m + sign * d for m, d in zip(line.mean, line.std, strict=True)] for sign in (-1, 1))
                axes.fill_between(line.x, low, high, color=shade, alpha=0.2, linewidth=0)
        every = [x for line in lines.values() for x in line.x]
        if min(every) > 0 and max(every) >= 20 * min(every):
            axes.set_xscale("log")
        axes.set_xlabel(parameter)
        axes.set_title(method)
    row[0].set_ylabel(measure)
    deviations = any(line.std is not None for lines in panels.values() for line in lines.values())
    figure.suptitle(f"{title}\n{BANDS}" if deviations else title, fontsize=TEXT)
    return _finish(figure, path)


def by_round(lines: Mapping[str, Mapping[str, Line]], path: Path | None = None, method: str = "wafl") -> Any:
    """Plot one panel per quantity, such as the loss and the achieved radius, with one line per run."""
    figure, row = _figure(5.0 * len(lines) + 1.0, 3.6, len(lines))
    for axes, (quantity, runs) in zip(row, lines.items(), strict=True):
        for (label, line), style in zip(runs.items(), styles(list(runs), [method] * len(runs)), strict=True):
            axes.plot(line.x, line.mean, color=style["color"], linewidth=2.4, label=label)
        axes.set(xlabel="round", ylabel=quantity)
    return _finish(figure, path, legend=OUTSIDE if len(next(iter(lines.values()))) > 1 else None)


def measure_by_client(
    names: Sequence[str],
    values: Sequence[float],
    groups: Sequence[str],
    measure: str,
    pooled: float,
    title: str,
    labels: Mapping[str, str],
    path: Path | None = None,
) -> Any:
    """Draw one bar per client: attacked, not attacked or unseen; the dashed line is the value on all examples.

    ``title`` describes the test, and ``labels`` are the names of groups in the legend, where they differ.
    """
    figure, (axes,) = _figure()
    positions = range(len(names))
    for group, color in {"not attacked": COLORS[2], "attacked": COLORS[0], "unseen": COLORS[1]}.items():
        members = [index for index in positions if groups[index] == group]
        if members:
            label = labels.get(group, group) if len(set(groups)) > 1 else None
            axes.bar(members, [values[index] for index in members], color=color, label=label)
    axes.axhline(pooled, color="black", linewidth=1.0, linestyle="--", label="all examples")
    if len(names) <= 40:
        axes.set_xticks(positions, names, rotation=90)
    else:
        axes.set_xlabel(f"{len(names)} clients")
    axes.set_ylabel(measure)
    axes.set_title(title)
    return _finish(figure, path)


def coverage_against_size(
    covered: Sequence[float], sizes: Sequence[float], promised: float, unit: str, path: Path | None = None
) -> Any:
    """Draw one point per client: the coverage of its prediction sets against their size."""
    figure, (axes,) = _figure()
    axes.scatter(sizes, [100.0 * value for value in covered], color=COLORS[2], alpha=0.7, label="client")
    axes.axhline(100.0 * promised, color="black", linewidth=1.0, linestyle="--", label="promised")
    axes.set(xlabel=unit, ylabel="labels covered (%)")
    return _finish(figure, path)


def generalization(results: Mapping[str, Any], path: Path) -> Any:
    """Plot each method on training, test and unseen data, with intervals over clients and the worst tenth."""
    rows = {name: row["generalization"] for name, row in results["methods"].items()}
    figure, (axes,) = _figure()
    unseen = "\n".join(wrap(unseen_clients(shorten(results.get("shift") or "")), 24))  # fits under a tick of the axis
    for (index, (name, row)), style in zip(enumerate(rows.items()), styles(list(rows)), strict=True):
        means = [row[split]["mean"] for split in SPLITS]
        lows, highs = zip(*(row[split]["interval"] for split in SPLITS), strict=True)
        # A bootstrap interval need not contain the mean of a few clients.
        errors = [
            [max(mean - low, 0.0) for mean, low in zip(means, lows, strict=True)],
            [max(high - mean, 0.0) for mean, high in zip(means, highs, strict=True)],
        ]
        across = [spot + min(0.06, 0.6 / len(rows)) * (index - (len(rows) - 1) / 2) for spot in range(len(SPLITS))]
        axes.errorbar(across, means, yerr=errors, label=name, linewidth=2.2, capsize=2, markersize=7, **style)
        worst = [row[split]["worst_tenth"]["mean"] for split in SPLITS]
        axes.plot(across, worst, markerfacecolor="none", linestyle="none", markersize=7, **style)
    axes.set_xticks(range(len(SPLITS)), ("seen clients,\ntraining data", "seen clients,\ntest data", unseen))
    axes.set_ylabel("accuracy (%)" if results["measure"] == "accuracy" else "loss")
    seeds = len(results["seeds"])
    means = f"mean over {seeds} seeds" if seeds > 1 else "one seed"
    title = f"{means}; bars: 95% intervals over clients\nhollow: the worst tenth of the clients"
    figure.suptitle(title, fontsize=TEXT)
    return _finish(figure, path)


@dataclass(frozen=True)
class Curve:
    """One run's certified worst-case loss by radius, proven or estimated, and the loss of an ascent, if measured."""

    radii: Sequence[float]
    certified: Sequence[float]
    reached: Sequence[float] | None
    proven: bool
    loss: float


def certificates_against_radius(runs: Mapping[str, Curve], norm: float, unit: str, path: Path | None = None) -> Any:
    """Plot each run's certified or estimated worst-case loss by radius, and the loss of an ascent."""
    figure, (axes,) = _figure()
    for (name, curve), style in zip(runs.items(), styles(list(runs)), strict=True):
        color = style["color"]
        label = name if curve.proven else f"{name} (estimate)"
        axes.plot(curve.radii, curve.certified, color=color, linewidth=3.2, label=label)
        if curve.reached is not None:
            axes.plot(curve.radii, curve.reached, color=color, linewidth=2.2, linestyle="--")
            axes.fill_between(curve.radii, curve.reached, curve.certified, color=color, alpha=0.12, linewidth=0)
    axes.set(xlabel=f"radius of the {norm_name(norm)} ball ({unit})", ylabel="expected loss")
    kinds = dict.fromkeys("certified" if curve.proven else "estimate" for curve in runs.values())
    title = f"worst case inside the ball: {' or '.join(kinds)} (solid), reached (dashed)"
    if "estimate" in kinds:
        title = f"Not proven: an estimate can be below the truth\n{title}"
    axes.set_title(title)
    if min(curve.loss for curve in runs.values()) >= 0.0:
        axes.set_ylim(bottom=0.0)
    return _finish(figure, path, legend={})


def radius_against_gamma(
    gammas: Sequence[float], radii: Sequence[float], norm: float, unit: str, path: Path | None = None
) -> Any:
    """Plot the paper's figure 2: the achieved radius falls as gamma rises."""
    figure, (axes,) = _figure(5.5, 3.8)
    axes.plot(gammas, radii, color=COLORS[2], marker="o", markersize=6, linewidth=2.4)
    axes.set(xscale="log", yscale="log", xlabel="gamma", ylabel=f"achieved radius, {norm_name(norm)} ({unit})")
    return _finish(figure, path, legend=None)


def _figure(width: float = 7.0, height: float = 4.2, panels: int = 1, *, sharey: bool = False) -> tuple[Any, Any]:
    """Return an empty figure, with its size in inches, and its panels side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, cast(Any, figure.subplots(1, panels, squeeze=False, sharey=sharey))[0]


def _finish(figure: Any, path: Path | None, legend: Mapping[str, Any] | None = OUTSIDE) -> Any:
    """Add a grid, large texts and, in the last panel, a legend; save the figure if there is a path."""
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize=TEXT)
        for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
            text.set_fontsize(TEXT)
        axes.spines[["top", "right"]].set_visible(False)
    if legend is not None:
        figure.axes[-1].legend(frameon=False, fontsize=TEXT, **legend)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
