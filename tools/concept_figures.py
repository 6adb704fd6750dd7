"""Draw the pictures of docs/concepts.md and figure 1 of the paper: ``python tools/concept_figures.py [FOLDER]``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch, Polygon

FOLDER = Path(__file__).parents[1] / "docs" / "images" / "concepts"
BLUE, ORANGE, GREEN, PINK, GRAY, BLACK = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#777777", "#222222"


def cloud(axes: Any, seed: int, x: float, y: float, color: str, count: int = 12, spread: float = 0.25) -> None:
    draws = np.random.default_rng(seed).uniform(-spread, spread, (2, count))
    axes.plot(x + draws[0], y + draws[1], "o", color=color, markersize=6)


def box(axes: Any, x: float, y: float, width: float, height: float, color: str) -> None:
    shape = FancyBboxPatch(
        (x, y), width, height, boxstyle="round,pad=0,rounding_size=0.15", facecolor="none", edgecolor=color, linewidth=2
    )
    axes.add_patch(shape)


def arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], color: str = BLACK) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": color, "lw": 2})


def canvas(axes: Any, width: float = 10.0, height: float = 4.0) -> None:
    axes.set(xlim=(0.0, width), ylim=(0.0, height), aspect="equal")
    axes.axis("off")


def client(axes: Any) -> None:
    canvas(axes)
    box(axes, 0.6, 0.4, 3.0, 2.7, BLUE)
    axes.text(2.1, 3.35, "client", ha="center", weight="bold", color=BLUE)
    cloud(axes, 1, 2.1, 2.0, BLUE, 22, 0.75)
    axes.text(2.1, 0.65, "its examples", ha="center")
    box(axes, 7.2, 0.9, 2.2, 1.7, BLACK)
    axes.text(8.3, 1.6, "server", ha="center", weight="bold")
    arrow(axes, (7.1, 2.2), (3.7, 2.2))
    arrow(axes, (3.7, 1.3), (7.1, 1.3))
    axes.text(5.4, 2.4, "model", ha="center")
    axes.text(5.4, 0.75, "trained model, loss", ha="center")


def federation(axes: Any) -> None:
    canvas(axes)
    axes.set_ylim(0.0, 4.2)
    for seed, (name, weight, color) in enumerate([("north", 0.5, BLUE), ("south", 0.3, GREEN), ("west", 0.2, PINK)]):
        y = 3.4 - 1.4 * seed
        box(axes, 1.3, y - 0.55, 1.6, 1.1, color)
        cloud(axes, seed, 2.1, y, color, int(24 * weight), 0.4)
        cloud(axes, seed + 9, 7.9, 2.0, color, int(60 * weight), 0.95)
        axes.text(1.1, y - 0.12, name, ha="right", color=color)
        arrow(axes, (3.1, y), (6.6, 2.0 + 0.35 * (1 - seed)), color)
        axes.text(4.2, y + (0.2 if seed < 2 else -0.55), f"weight {weight}", ha="center", color=color)
    axes.text(7.9, 3.55, "the mixture", ha="center", weight="bold")


def ball(axes: Any) -> None:
    canvas(axes)
    axes.add_patch(Circle((4.0, 2.0), 1.75, facecolor=BLUE, alpha=0.12))
    axes.add_patch(Circle((4.0, 2.0), 1.75, facecolor="none", edgecolor=BLUE, linewidth=2))
    axes.plot([4.0, 5.75], [2.0, 2.0], "--", color=BLUE)
    axes.text(4.95, 2.12, "radius", ha="center", color=BLUE)
    axes.plot(4.0, 2.0, "o", color=BLACK, markersize=10)
    axes.text(4.0, 1.35, "mixture", ha="center")
    for x, y in [(3.1, 2.9), (2.8, 1.5), (4.3, 3.1), (4.9, 1.0)]:
        axes.plot(x, y, "o", color=BLUE, markersize=8)
    axes.text(0.1, 3.1, "covered:\nanother scanner,\nsome noise", color=BLUE, va="center", fontsize=12)
    axes.plot(8.0, 2.9, "X", color=ORANGE, markersize=11)
    axes.text(8.0, 2.0, "too far away:\nnothing is\npromised", color=ORANGE, ha="center", va="center", fontsize=12)


def radius_and_gamma(axes: Any) -> None:
    gamma = np.geomspace(0.05, 20.0, 100)
    axes.loglog(gamma, 1.2 / (gamma + 0.25), color=BLUE)
    axes.set(xlabel="gamma: the price of a move", ylabel="radius", xticks=[], yticks=[])
    axes.minorticks_off()
    axes.text(0.06, 1.2, "cheap moves,\nlarge ball", fontsize=12)
    axes.text(4.0, 0.9, "expensive moves,\nsmall ball", fontsize=12)


def certificate(axes: Any) -> None:
    radius = np.linspace(0.0, 1.0, 50)
    low, high = 0.5 + 0.9 * radius, 0.5 + 1.1 * radius + 0.6 * radius**2
    axes.plot(radius, high, color=BLUE)
    axes.plot(radius, low, color=ORANGE)
    axes.fill_between(radius, low, high, color=GRAY, alpha=0.25, linewidth=0)
    axes.text(0.52, 1.72, "certified: no distribution\nin the ball exceeds it", color=BLUE, ha="right", fontsize=12)
    axes.text(0.62, 0.62, "achieved: one\ndistribution reaches it", color=ORANGE, fontsize=12)
    axes.text(0.9, 1.52, "the worst\nloss is here", ha="center", fontsize=12)
    axes.set(xlabel="radius", ylabel="expected loss", xticks=[], yticks=[], xlim=(0.0, 1.0), ylim=(0.4, 2.3))


def next_client(axes: Any) -> None:
    canvas(axes, 10.0, 3.6)
    values = [1.0, 1.7, 2.2, 2.9, 3.3, 4.1, 4.6, 5.4, 6.8]
    arrow(axes, (0.4, 1.2), (9.7, 1.2))
    axes.plot(values, [1.2] * len(values), "o", color=BLUE, markersize=12)
    axes.text(3.3, 0.35, "losses of nine clients that did not train", ha="center", color=BLUE)
    axes.plot([6.8, 6.8], [0.9, 2.6], "--", color=ORANGE)
    axes.text(6.8, 2.75, "bound", ha="center", color=ORANGE, weight="bold")
    axes.text(3.6, 1.9, "? next client: here with 90% probability", ha="center")
    axes.text(9.7, 0.65, "loss", ha="right")


def prediction_set(axes: Any) -> None:
    names, probabilities = ["3", "8", "5", "9", "1"], [0.48, 0.29, 0.13, 0.07, 0.03]
    colors = [BLUE, BLUE, GRAY, GRAY, GRAY]
    axes.bar(names, probabilities, color=colors, width=0.7)
    axes.axhline(0.2, color=ORANGE, linestyle="--")
    axes.text(4.4, 0.225, "threshold", color=ORANGE, ha="right")
    axes.text(2.1, 0.42, "the set is {3, 8}", color=BLUE, weight="bold")
    axes.set(xlabel="class", ylabel="probability", yticks=[])


def two_centers(axes: Any) -> None:
    """Draw figure 1 of the paper: a ball that covers all mixtures of four clients, and one that is near a target."""
    canvas(axes, 10.0, 5.0)
    clients = np.array([(1.6, 1.5), (2.3, 3.6), (4.2, 3.5), (4.4, 1.7)])
    axes.add_patch(Polygon(clients, facecolor=GRAY, alpha=0.3))
    center = np.array([3.1, 2.6])
    radius = float(np.linalg.norm(clients - center, axis=1).max())
    axes.add_patch(Circle((float(center[0]), float(center[1])), radius, facecolor="none", edgecolor=BLUE))
    for (x, y), number in zip(clients, "1234", strict=True):
        axes.plot(x, y, "o", color=BLACK, markersize=8)
        axes.text(x + 0.12, y + 0.12, f"$P_{number}$")
    edge = center - radius * np.array([1.0, 0.0])
    axes.plot(*np.transpose([center, edge]), "--", color=BLUE)
    axes.text(*(center + edge) / 2.0 + np.array([-0.2, 0.15]), r"$\rho$", color=BLUE)
    axes.plot(*center, "o", color=BLUE, markersize=8)
    axes.text(center[0] + 0.12, center[1] - 0.4, r"$P_\lambda$", color=BLUE)
    nearest, target = np.array([4.31, 2.5]), np.array([6.6, 2.4])
    axes.add_patch(
        Circle(
            (float(nearest[0]), float(nearest[1])),
            float(np.linalg.norm(target - nearest)),
            facecolor="none",
            edgecolor=ORANGE,
        )
    )
    axes.plot(*nearest, "o", color=ORANGE, markersize=8)
    axes.text(nearest[0] + 0.2, nearest[1] - 0.1, r"$P_{\lambda'}$", color=ORANGE)
    axes.plot(*target, "X", color=ORANGE, markersize=11)
    axes.text(target[0] - 0.45, target[1] + 0.15, "$Q$", color=ORANGE)
    axes.text(7.0, 4.3, "gray: all mixtures of the\nclients, agnostic FL's set", fontsize=12, va="center")
    axes.text(7.0, 3.3, "blue: a ball that\ncovers the set", color=BLUE, fontsize=12, va="center")
    axes.text(
        7.0,
        2.0,
        "orange: a ball whose\ncenter is the mixture\nnearest to a target Q",
        color=ORANGE,
        fontsize=12,
        va="center",
    )


PICTURES: dict[str, Callable[[Any], None]] = {
    "client": client,
    "federation": federation,
    "ball": ball,
    "two-centers": two_centers,
    "radius-and-gamma": radius_and_gamma,
    "certificate": certificate,
    "next-client": next_client,
    "prediction-set": prediction_set,
}


def main(folder: Path, kind: str = "svg") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"font.size": 14, "svg.hashsalt": "wafl", "lines.linewidth": 2.5}):
        for name, draw in PICTURES.items():
            figure = Figure(figsize=(7.0, 2.8), layout="constrained")
            axes: Any = figure.subplots()
            axes.spines[["top", "right"]].set_visible(False)
            draw(axes)
            figure.savefig(folder / f"{name}.{kind}", metadata={"Date": None} if kind == "svg" else None)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
