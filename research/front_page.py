"""Draw what the README opens with: docs/images/front.png and docs/images/terminal.svg.

    python -m research front-page [--promise] [--rounds 60] [--folder docs/images] [--smallest]

The picture is what ``experiments/registered/front-picture.toml`` says: what is promised of the next client, by
distance, and what happened to sealed clients. --promise issues the promises and opens the clients (15 minutes,
with MNIST in the data folder), and keeps the numbers in docs/evidence/front.json. The terminal is ``wafl run``.
"""

from __future__ import annotations

import argparse
import io
import json
import math
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
from research.promises.phases import happened_to, trained
from research.promises.tasks import apart, tasks_of
from research.registration import registered
from wafl.report.plotting import METHODS

ROOT = Path(__file__).parents[1]
NUMBERS = ROOT / "docs" / "evidence" / "front.json"
NAME = "front-picture"
COLUMNS = 96


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--promise", action="store_true", help="make the numbers of the picture again")
    parser.add_argument("--smallest", action="store_true", help="promise about digits, in seconds, which says nothing")
    parser.add_argument("--rounds", type=int, default=60, help="of the terminal's models")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    given = parser.parse_args(argv)
    numbers = NUMBERS
    if given.promise:
        numbers = given.folder / NUMBERS.name if given.smallest else NUMBERS
        numbers.parent.mkdir(parents=True, exist_ok=True)
        numbers.write_text(json.dumps(promised(given.smallest), indent=1) + "\n")
    picture(json.loads(numbers.read_text()), given.folder / "front.png")
    terminal(given.rounds, given.folder / "terminal.svg")


def promised(smallest: bool) -> dict[str, Any]:
    """Per method, radius and fold: what is promised of the next client, and what happened to the sealed ones."""
    about, stamp = registered(NAME)
    about |= about["smoke"] if smallest else {}
    table, _ = registered("promises")
    (task,) = (task for task in tasks_of(table, "smoke" if smallest else "full") if task.name == about["task"])
    clients = task.clients()
    rows: list[dict[str, Any]] = []
    for number, (seen_ones, calibrating, sealed_ones) in enumerate(task.folds(clients.num_clients)):
        seen, calibration = apart(clients, seen_ones, calibrating)
        _, sealed = apart(clients, seen_ones, sealed_ones)
        confidence = about["confidence"] if len(calibrating) > 18 else 0.8
        for method in about["methods"]:
            run = trained(task, method, seen)
            for radius in about["radii"]:
                options: dict[str, Any] = {"metric": about["metric"], "own_sampling": False, "confidence": confidence}
                promise = wafl.issue_next_client(run, seen, calibration, radius=radius, **options)
                happened = happened_to(run.module, promise, sealed)
                row = {"method": method, "fold": number, "radius": radius, "promised": promise.values["next"]}
                rows.append({**row, "happened": happened})
                print(row, flush=True)
    about = {name: about[name] for name in ("task", "metric", "confidence", "radii", "methods")}
    return {"registered": stamp, **about, "rows": rows}


def picture(numbers: dict[str, Any], path: Path) -> None:
    """The promised error by distance, and what 95% of the sealed clients stayed below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.2), layout="constrained")
    axes = figure.subplots()
    for method in numbers["methods"]:
        rows = [[row for row in numbers["rows"] if (row["method"], row["radius"]) == (method, radius)]
                for radius in numbers["radii"]]  # fmt: skip
        promise = [100.0 * statistics.fmean(row["promised"] for row in each) for each in rows]
        pooled = [sorted(100.0 * value for row in each for value in row["happened"]) for each in rows]
        reached = [
            values[min(len(values), math.ceil((len(values) + 1) * numbers["confidence"])) - 1] for values in pooled
        ]
        color = METHODS[method.lower()]
        axes.plot(numbers["radii"], promise, color=color, linewidth=2.0, label=f"{method}: promised")
        axes.plot(numbers["radii"], reached, "o", color=color, label=f"{method}: happened")
    axes.set_xlabel("how far the next client's examples are moved (W_2, l2, pixels in [0, 1])")
    axes.set_ylabel(f"{numbers['metric']} of the next client (%)")
    axes.set_ylim(0.0, 100.0)
    axes.set_title(
        "Lines: promised at 95%. Dots: what 95% of the sealed clients then stayed below, moved that far on purpose",
        fontsize=9,
    )
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


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
