"""Pictures of data: the labels of each client, and examples of each class of a data set."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

DPI = 200
EXAMPLES = 10
"""The number of images of each class."""
ROWS = 16
"""More classes than this are drawn in several columns."""
TILE = 84
"""The approximate height of an example in the picture; each of its pixels becomes a whole number of pixels there."""
MARGIN, HEADING = 12, 80
GROUT, PAPER = 190, 255


def labels_by_client(
    counts: Tensor, path: Path | None, clients: Sequence[str] | None, classes: Sequence[str] | None
) -> Any:
    """One dot per client and label, its area from ``counts [clients, labels]``; up to 40 clients are shown by name."""
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


def contact_sheet(
    images: NDArray[np.uint8], labels: NDArray[Any], classes: Sequence[str], path: Path, *, title: str
) -> Path:
    """Write a PNG with some images of each class, taken evenly: neighbors are often from one writer or one street."""
    from matplotlib.figure import Figure

    strips = [_strip(images, labels, label) for label in range(len(classes))]
    panels = math.ceil(len(classes) / ROWS)
    rows = math.ceil(len(classes) / panels)
    tile, wide = strips[0].shape[:2]
    caption = 30 + 16 * max(map(len, classes))
    width, height = panels * (caption + wide) + MARGIN, HEADING + rows * tile + MARGIN
    figure = Figure(figsize=(width / DPI, height / DPI), facecolor="white")
    for panel in range(panels):
        names, shown = (values[panel * rows : (panel + 1) * rows] for values in (classes, strips))
        left, bottom = panel * (caption + wide) + caption, MARGIN + (rows - len(shown)) * tile
        box = (left / width, bottom / height, wide / width, len(shown) * tile / height)
        axes = cast(Any, figure.add_axes(box))
        axes.imshow(np.concatenate(shown), interpolation="nearest", aspect="auto")
        axes.set_yticks([tile * (row + 0.5) - 0.5 for row in range(len(shown))], names, fontsize=9)
        axes.set_xticks([])
        axes.tick_params(length=0, pad=4)
        axes.spines[:].set_visible(False)
    figure.text(caption / width, 1 - MARGIN * 2 / height, title, fontsize=10, va="top")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
    return path


def _strip(images: NDArray[np.uint8], labels: NDArray[Any], label: int) -> NDArray[np.uint8]:
    """One class: framed images in a row, in color and enlarged; missing images are left white."""
    rows = np.flatnonzero(labels == label)
    rows = rows[np.linspace(0, len(rows) - 1, min(EXAMPLES, len(rows))).round().astype(int)]
    scale = max(1, round(TILE / images.shape[1]))
    chosen = images[rows].repeat(scale, 1).repeat(scale, 2)
    if chosen.ndim == 3:
        chosen = chosen[..., None].repeat(3, 3)
    framed = np.pad(chosen, ((0, 0), (2, 2), (2, 2), (0, 0)), constant_values=GROUT)
    blank = np.full((EXAMPLES - len(rows), *framed.shape[1:]), PAPER, np.uint8)
    return np.concatenate([*framed, *blank], axis=1)
