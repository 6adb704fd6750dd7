"""Draw a federation: the labels of each client."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from torch import Tensor


def labels_by_client(
    counts: Tensor, path: Path | None, clients: Sequence[str] | None, classes: Sequence[str] | None
) -> Any:
    """Draw one dot per client and label, its area from ``counts [clients, labels]``.

    Up to 40 clients are shown by name.
    """
    from matplotlib.figure import Figure

    client, label = counts.nonzero(as_tuple=True)
    sizes = counts[client, label].double()
    width = min(14.0, max(5.0, 0.16 * len(counts) + 2.0))
    figure = Figure(figsize=(width, max(2.5, 0.28 * counts.shape[1] + 1.2)), layout="constrained")
    axes = cast(Any, figure.subplots())
    axes.scatter(client, label, s=(90.0 * sizes / sizes.max()).tolist(), color="#0072B2", alpha=0.8, linewidths=0)
    axes.set_xlabel("client")
    axes.set_ylabel("label")
    shown = range(0, counts.shape[1], max(1, counts.shape[1] // 20))
    axes.set_yticks(shown, None if classes is None else [classes[label] for label in shown])
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
