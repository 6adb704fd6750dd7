"""Draw what the README opens with: docs/images/front.png and docs/images/terminal.svg.

    .venv/bin/python tools/front_page.py [--rounds 60] [--folder docs/images]

The left panel is the fair protocol on CIFAR-10, from the numbers of docs/reproduction; the right one certifies two
linear models that are trained here. The terminal is `wafl run` of three methods, trained here too.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

import wafl
from wafl.lab.reproduction.draw import tested
from wafl.report.plotting import METHODS

ROOT = Path(__file__).parents[1]
NUMBERS = ROOT / "docs" / "reproduction" / "fig-attacked-share-cifar10-fair.json"
TEST = "l_inf"
SHOWN = {"wafl-l2": "WAFL", "fedpgm": "FedPGM", "fedavg": "FedAvg", "afl": "AFL"}
RADII = [0.0, 0.25, 0.5, 0.75, 1.0]
COLUMNS = 96


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="of the models that are trained here")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    given = parser.parse_args(argv)
    picture(given.rounds, given.folder / "front.png")
    terminal(given.rounds, given.folder / "terminal.svg")


def picture(rounds: int, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 4.2), layout="constrained")
    attacked, certified = figure.subplots(1, 2)
    _attacked(attacked)
    _certified(certified, rounds)
    for axes in (attacked, certified):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def _attacked(axes: Any) -> None:
    """Accuracy by the share of attacked clients, with one standard deviation over seeds."""
    numbers = json.loads(NUMBERS.read_text())
    shares = sorted({row["attacked"] for row in tested(numbers, TEST)})
    for entry, name in SHOWN.items():
        by_share = [[row["accuracy"] for row in tested(numbers, TEST, entry=entry, attacked=share)] for share in shares]
        mean, std = [statistics.mean(each) for each in by_share], [statistics.stdev(each) for each in by_share]
        low, high = ([a + sign * b for a, b in zip(mean, std, strict=True)] for sign in (-1, 1))
        color, x = METHODS[name.lower()], [100.0 * share for share in shares]
        axes.plot(x, mean, color=color, marker="o", linewidth=2.5 if name == "WAFL" else 1.5, label=name)
        axes.fill_between(x, low, high, color=color, alpha=0.1, linewidth=0)
    axes.set_xlabel("share of the clients that are attacked (%)")
    axes.set_ylabel("test accuracy (%)")
    axes.set_ylim(bottom=0.0)
    axes.set_title("CIFAR-10, a CNN, every method tuned alike: 3 seeds ± deviation", fontsize=10)


def _certified(axes: Any, rounds: int) -> None:
    """The certified loss by radius."""
    clients = wafl.load_dataset("digits").partition(num_clients=10, labels_per_client=4, seed=0)
    for method in (wafl.WAFL(gamma=1.5), wafl.FedAvg()):
        run = wafl.fit(
            wafl.models.mlr(clients), clients, method, rounds=rounds, local_epochs=2, learning_rate=0.3, seed=0
        )
        rows, color = wafl.certify(run, clients, radii=RADII, achieved=False).rows, METHODS[method.name.lower()]
        axes.plot(RADII, [row.best for row in rows], color=color, linewidth=2.0, label=method.name)
    axes.set_xlabel("Wasserstein distance from the clients' data (l2, pixels in [0, 1])")
    axes.set_ylabel("expected loss, certified")
    axes.set_ylim(bottom=0.0)
    axes.set_title("digits, a linear model: no distribution this near is worse", fontsize=10)


def terminal(rounds: int, path: Path) -> None:
    """`wafl run` as a terminal shows it."""
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
