"""Draw docs/images/front.png, the README's figure, and docs/images/terminal.svg, the terminal of docs/tour.md.

    python -m research front-page [--rounds 60] [--folder docs/images]

The figure shows clean against attacked accuracy from docs/evidence/attack-frontier.json and trains nothing. The
terminal shows ``wafl run``.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.text import Text

from research import drawing
from research.experiment import ROOT
from research.registered import attack_frontier, hulls
from research.registration import registered
from research.statistics import Mean, mean_of
from wafl.base.norms import norm_name

Point = tuple[float, float]
NAME = "attack-frontier"
NUMBERS = ROOT / "docs" / "evidence" / f"{NAME}.json"
DATA, NORM = "cifar10", "inf"
SHOWN = ("WAFL", "FedPGM", "FedAvg")
LABELS = {"WAFL": (53.2, 28.9), "FedPGM": (45.6, 30.0), "FedAvg": (46.8, 12.9)}
"""The positions of the names of the lines, in points of clean and attacked accuracy."""
COLUMNS = 96


@dataclass(frozen=True)
class Frontier:
    """Clean and attacked accuracy of one method, in percent.

    Attributes:
        hull: Under PGD: the means over partitions of the models on the method's frontier.
        autoattack: Per model that AutoAttack was run on: its mean under PGD, and its accuracies under AutoAttack.
    """

    hull: list[Point]
    autoattack: list[tuple[Point, Point]]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="rounds of the models in the terminal")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images", help="where to write both files")
    given = parser.parse_args(argv)
    save(figure_of(json.loads(NUMBERS.read_bytes())), given.folder / "front.png")
    terminal(given.rounds, given.folder / "terminal.svg")


def frontiers(numbers: dict[str, Any]) -> dict[str, Frontier]:
    """Return the frontier of each method in the figure, from the numbers of the registered experiment."""
    about, results = registered(NAME)[0], numbers["data"][DATA]
    result: dict[str, Frontier] = {}
    for name in SHOWN:
        families = [family for family in about["names"][name] if NORM in about["families"][family]["against"]]
        points = attack_frontier.means(about, DATA, results, families, NORM)
        attacked = [row for row in results["autoattack"] if row["family"] in families]
        pairs = [(mean_under_pgd(results["rows"], row), accuracies(row)) for row in attacked]
        result[name] = Frontier(hulls.upper_hull(points), pairs)
    return result


def mean_under_pgd(rows: list[dict[str, Any]], model: dict[str, Any]) -> Point:
    """Return a model's clean and attacked accuracy, as means over partitions."""
    same = [accuracies(row) for row in rows if (row["family"], row["size"]) == (model["family"], model["size"])]
    return fmean(clean for clean, _ in same), fmean(attacked for _, attacked in same)


def accuracies(row: dict[str, Any]) -> Point:
    """Return the clean and the attacked accuracy of a row."""
    return row["accuracy"]["clean"], row["accuracy"][NORM]


def lead_over(numbers: dict[str, Any], rival: str) -> Mean:
    """Return WAFL's mean height above a rival's frontier, in points, with its interval over partitions."""
    (row,) = (row for row in numbers["data"][DATA]["compared"] if (row["attack"], row["rival"]) == (NORM, rival))
    return mean_of(row["means"])


def figure_of(numbers: dict[str, Any]) -> Any:
    """Draw the frontiers as lines, AutoAttack as crosses, and WAFL's lead over FedAvg as a band."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.4), layout="constrained")
    axes: Any = figure.subplots()
    drawn = frontiers(numbers)
    band(axes, drawn["WAFL"].hull, drawn["FedAvg"].hull)
    for name, frontier in drawn.items():
        color = drawing.method_color(name)
        axes.plot(*zip(*frontier.hull, strict=True), "o-", color=color, linewidth=4.0, markersize=10, label=name)
        axes.text(*LABELS[name], name, color=color, fontsize=22, fontweight="bold")
        for pgd, autoattack in frontier.autoattack:
            axes.plot(*zip(pgd, autoattack, strict=True), ":", color=color, linewidth=2.0)
            axes.plot(*autoattack, "X", color=color, markersize=15, markeredgecolor="white")
            clean, attacked = autoattack
            axes.text(clean - 0.5, attacked, f"{attacked:.1f}", color=color, fontsize=15, ha="right", va="center")
    lead = f"WAFL over FedAvg:\n+{lead_over(numbers, 'FedAvg')} points\n(mean, PGD)"
    axes.text(47.2, 21.8, lead, fontsize=17, va="center", linespacing=1.3)
    about = registered(NAME)[0]
    for marker, attack, low in (("o", f"PGD, {about['test']['steps']} steps", 5.0), ("X", "AutoAttack", 2.4)):
        axes.plot(44.0, low, marker, color="gray", markersize=13)
        axes.text(44.7, low, attack, color="dimgray", fontsize=17, va="center")
    # The registered size is for pixels in [-1, 1]; papers on CIFAR-10 use [0, 1].
    levels = about["data"][DATA]["attack"][NORM] / 2.0 * 255.0
    axes.set_title(
        f"CIFAR-10 under attack ({norm_name(float(NORM))}, {levels:.0f}/255)", fontsize=20, loc="left", pad=12
    )
    axes.set(xlim=(43.0, 64.0), ylim=(0.0, 32.0), xticks=(45, 50, 55, 60), yticks=(0, 10, 20, 30))
    axes.set_xlabel("accuracy on clean images (%)", fontsize=18)
    axes.set_ylabel("accuracy under attack (%)", fontsize=18)
    axes.tick_params(labelsize=17)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def band(axes: Any, ours: list[Point], theirs: list[Point]) -> None:
    """Shade the area between two frontiers, over their common clean accuracies."""
    import numpy as np

    shared = hulls.common(ours, theirs)
    assert shared is not None, "no clean accuracy is on both frontiers"
    clean = np.linspace(*shared, 200)
    heights = [hulls.height(points, clean) for points in (theirs, ours)]
    axes.fill_between(clean, *heights, color=drawing.method_color("WAFL"), alpha=0.12, linewidth=0)


def save(figure: Any, path: Path) -> None:
    """Write the figure with the digest of its numbers, so that a test can detect an outdated figure."""
    digest = hashlib.sha256(NUMBERS.read_bytes()).hexdigest()
    figure.savefig(path, dpi=150, metadata={"Software": None, "Source": f"{NUMBERS.name} {digest}"})


def terminal(rounds: int, path: Path) -> None:
    """Write the picture of `wafl run` in a terminal."""
    from wafl.cli.main import app

    os.environ["COLUMNS"] = str(COLUMNS)
    options = ["--method", "wafl", "--method", "fedavg", "--method", "drfa", "--rounds", str(rounds), "--seeds", "3"]
    with tempfile.TemporaryDirectory() as folder:
        printed = io.StringIO()
        with redirect_stdout(printed):
            app(["run", *options, "--output", folder], standalone_mode=False)
        text = printed.getvalue().replace(folder, "runs")
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text(f"$ wafl run {' '.join(options)}", style="bold"))
    console.print(Text.from_ansi(text))
    image = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="wafl run"), flags=re.DOTALL)  # no downloads
    path.write_text(image, encoding="utf-8")


if __name__ == "__main__":
    main()
