"""Figures: arrays in, a matplotlib figure out; no display is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from wafl.core.norms import norm_name

# Okabe and Ito's palette, whose colors stay distinct under the common kinds of color blindness.
COLORS = ("#D55E00", "#000000", "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7")
MARKERS = ("o", "s", "^", "v", "D", "P", "X")


def measure_against_attacked(results: Mapping[str, Any], path: Path) -> Path:
    """The paper's comparison: accuracy (or loss) of each method against the share of attacked clients."""
    from matplotlib.figure import Figure

    rows = results["methods"]
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = cast(Any, figure.subplots())
    for place, (name, row) in enumerate(rows.items()):
        points = {0.0: row["clean"], **{float(share): value for share, value in row["attacked"].items()}}
        axes.errorbar(
            [100.0 * share + 0.35 * (place - len(rows) / 2) for share in points],
            [value["mean"] for value in points.values()],
            yerr=[value["std"] for value in points.values()],
            label=name,
            color=COLORS[place % len(COLORS)],
            marker=MARKERS[place % len(MARKERS)],
            markersize=5,
            linewidth=2.2 if place == 0 else 1.2,
            capsize=2,
        )
    axes.set_xlabel("attacked clients (%)")
    axes.set_ylabel("accuracy (%)" if results["measure"] == "accuracy" else "loss")
    axes.set_title(results["attack"] or "clean data", fontsize=10)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=150)
    return path


def generalization(results: Mapping[str, Any], path: Path) -> Path:
    """Accuracy (or loss) of each method on training, test and unseen data, with the intervals over clients.

    Hollow marks are the worst tenth of the clients.
    """
    from matplotlib.figure import Figure

    rows = {name: row["generalization"] for name, row in results["methods"].items()}
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = cast(Any, figure.subplots())
    parts = ("train", "test", "unseen")
    for place, (name, row) in enumerate(rows.items()):
        means = [row[part]["mean"] for part in parts]
        lows, highs = zip(*(row[part]["interval"] for part in parts), strict=True)
        # A bootstrap interval need not hold the mean of a few clients.
        errors = [
            [max(mean - low, 0.0) for mean, low in zip(means, lows, strict=True)],
            [max(high - mean, 0.0) for mean, high in zip(means, highs, strict=True)],
        ]
        across = [spot + min(0.06, 0.6 / len(rows)) * (place - (len(rows) - 1) / 2) for spot in range(len(parts))]
        color, marker = COLORS[place % len(COLORS)], MARKERS[place % len(MARKERS)]
        axes.errorbar(
            across, means, yerr=errors, label=name, color=color, marker=marker, markersize=5, linewidth=1.2, capsize=2
        )
        worst = [row[part]["worst_tenth"]["mean"] for part in parts]
        axes.plot(across, worst, color=color, marker=marker, markersize=5, markerfacecolor="none", linestyle="none")
    axes.set_xticks(range(len(parts)), ("seen clients,\ntraining data", "seen clients,\ntest data", "unseen clients"))
    axes.set_ylabel("accuracy (%)" if results["measure"] == "accuracy" else "loss")
    figure.suptitle("bars: 95% intervals over clients; hollow: the worst tenth of the clients", fontsize=10)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=150)
    return path


def labels_by_client(
    counts: Tensor,
    path: Path | None = None,
    clients: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
) -> Any:
    """One dot per client and label, whose area is the number of examples; ``counts [clients, labels]``.

    Up to 40 clients are shown by name, if they have names; so are the classes.
    """
    from matplotlib.figure import Figure

    client, label = counts.nonzero(as_tuple=True)
    sizes = counts[client, label].double()
    width = min(14.0, max(5.0, 0.16 * len(counts) + 2.0))
    figure = Figure(figsize=(width, max(2.5, 0.28 * counts.shape[1] + 1.2)), layout="constrained")
    axes = cast(Any, figure.subplots())
    axes.scatter(client, label, s=(90.0 * sizes / sizes.max()).tolist(), color=COLORS[2], alpha=0.8, linewidths=0)
    axes.set_xlabel("client")
    axes.set_ylabel("label")
    places = range(0, counts.shape[1], max(1, counts.shape[1] // 20))
    axes.set_yticks(places, None if classes is None else [classes[place] for place in places])
    if clients is not None and len(clients) <= 40:
        upright = max(map(len, clients)) * len(clients) > 12 * width
        axes.set_xticks(range(len(clients)), clients, rotation=90 if upright else 0)
    axes.set_title(
        f"{len(counts)} clients, {int(counts.sum()):,} examples; largest dot {int(sizes.max())}", fontsize=10
    )
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


@dataclass(frozen=True)
class Curve:
    """One run's certified worst-case loss by radius, in ascending order, and what an adversary reaches there.

    ``reached`` is None if that was not measured; ``proven`` says whether ``certified`` is a bound or an estimate.
    """

    radii: Sequence[float]
    certified: Sequence[float]
    reached: Sequence[float] | None
    proven: bool
    loss: float


def certificates_against_radius(runs: Mapping[str, Curve], norm: float, unit: str, path: Path | None = None) -> Any:
    """Each run's certified worst-case loss against the radius, and below it what an adversary reaches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = cast(Any, figure.subplots())
    for place, (name, curve) in enumerate(runs.items()):
        color = COLORS[place % len(COLORS)]
        label = name if curve.proven else f"{name} (estimate)"
        axes.plot(curve.radii, curve.certified, color=color, linewidth=2.0, label=label)
        if curve.reached is not None:
            axes.plot(curve.radii, curve.reached, color=color, linewidth=1.2, linestyle="--")
            axes.fill_between(curve.radii, curve.reached, curve.certified, color=color, alpha=0.12, linewidth=0)
    axes.set_xlabel(f"radius of the {norm_name(norm)} ball ({unit})")
    axes.set_ylabel("expected loss")
    axes.set_title("worst case inside the ball: certified (solid), reached (dashed)", fontsize=10)
    if min(curve.loss for curve in runs.values()) >= 0.0:
        axes.set_ylim(bottom=0.0)
    return _finish(figure, axes, path)


def radius_against_gamma(
    gammas: Sequence[float], radii: Sequence[float], norm: float, unit: str, path: Path | None = None
) -> Any:
    """The paper's first figure: the achieved radius falls as gamma rises."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.8), layout="constrained")
    axes = cast(Any, figure.subplots())
    axes.plot(gammas, radii, color=COLORS[2], marker="o", markersize=4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("gamma")
    axes.set_ylabel(f"achieved radius, {norm_name(norm)} ({unit})")
    return _finish(figure, axes, path)


def weights_and_distances(
    names: Sequence[str],
    squares: Sequence[float],
    standard_errors: Sequence[float],
    weights: Mapping[str, Sequence[float]],
    target: str | None,
    unit: str,
    path: Path,
) -> Path:
    """How far each source is, and next to it the weight that each rule gives it.

    ``squares`` are squared distances with their ``standard_errors``; the keys of ``weights`` name the rules.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 1.6 + 0.45 * len(names)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    places = list(range(len(names)))
    lengths = [max(square, 0.0) ** 0.5 for square in squares]
    errors = [
        error / (2.0 * max(w, 1e-12)) if error == error else 0.0
        for w, error in zip(lengths, standard_errors, strict=True)
    ]
    left.barh(places, lengths, xerr=errors, color=COLORS[3], capsize=2)
    left.set_yticks(places, names)
    left.invert_yaxis()
    left.set_xlabel(f"W_2 to {target} ({unit})" if target else f"W_2 from the mixture ({unit})")
    height = 0.8 / len(weights)
    for place, (label, values) in enumerate(weights.items()):
        shifts = [row - 0.4 + (place + 0.5) * height for row in places]
        right.barh(shifts, values, height=height, color=COLORS[(2, 0)[place % 2]], label=label)
    right.set_xlabel("client weight")
    right.set_xlim(0.0, 1.0)
    right.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for axes in (left, right):
        axes.grid(alpha=0.3, axis="x")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    return path


def _finish(figure: Any, axes: Any, path: Path | None) -> Any:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
