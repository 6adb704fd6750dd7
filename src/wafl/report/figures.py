"""Figures on paper: matplotlib, no display needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from wafl.federation import Federation
from wafl.study import Outcome

# Okabe and Ito's palette, which stays apart under the common kinds of color blindness.
COLORS = ("#D55E00", "#000000", "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7")
MARKERS = ("o", "s", "^", "v", "D", "P", "X")


def accuracy_against_attacked(outcomes: Sequence[Outcome], attack: str, path: Path) -> Path:
    """The paper's comparison: accuracy of each method against the share of attacked clients."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = cast(Any, figure.subplots())
    for place, outcome in enumerate(outcomes):
        row = outcome.summary()
        points = {0.0: row["clean"], **{float(share): value for share, value in row["attacked"].items()}}
        axes.errorbar(
            [100.0 * share + 0.35 * (place - len(outcomes) / 2) for share in points],
            [value["mean"] for value in points.values()],
            yerr=[value["std"] for value in points.values()],
            label=outcome.name,
            color=COLORS[place % len(COLORS)],
            marker=MARKERS[place % len(MARKERS)],
            markersize=5,
            linewidth=2.2 if place == 0 else 1.2,
            capsize=2,
        )
    axes.set_xlabel("attacked clients (%)")
    axes.set_ylabel("accuracy (%)")
    axes.set_title(attack, fontsize=10)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=150)
    return path


def labels_by_client(clients: Federation, path: Path | None = None) -> Any:
    """A dot for each client and label, its area the number of examples."""
    from matplotlib.figure import Figure

    counts = clients.label_counts()
    client, label = counts.nonzero(as_tuple=True)
    sizes = counts[client, label].double()
    width = min(14.0, max(5.0, 0.16 * clients.num_clients + 2.0))
    figure = Figure(figsize=(width, max(2.5, 0.28 * counts.shape[1] + 1.2)), layout="constrained")
    axes = cast(Any, figure.subplots())
    axes.scatter(client, label, s=(90.0 * sizes / sizes.max()).tolist(), color=COLORS[2], alpha=0.8, linewidths=0)
    axes.set_xlabel("client")
    axes.set_ylabel("label")
    axes.set_yticks(range(0, counts.shape[1], max(1, counts.shape[1] // 20)))
    axes.set_title(
        f"{clients.num_clients} clients, {int(counts.sum()):,} examples; largest dot {int(sizes.max())}", fontsize=10
    )
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
