"""Promise the next client's error rate at several distances, and measure it at sealed clients.

    python -m research promised-distances [--output docs/evidence/front.json] [--smallest]

The experiment is ``experiments/registered/front-picture.toml``. It takes 15 minutes on one core, with MNIST in the data
folder. Its table is in docs/promises.md: ``python -m research pages`` fills it in.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import wafl
from research.experiment import ROOT
from research.markdown import table
from research.promises.phases import happened_to, trained
from research.promises.tasks import apart, tasks_of
from research.registration import registered

NUMBERS = ROOT / "docs" / "evidence" / "front.json"
NAME = "front-picture"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output", type=Path, help=f"the file of the numbers; by default {NUMBERS.name}, or none if smallest"
    )
    parser.add_argument("--smallest", action="store_true", help="use digits: takes seconds, and measures nothing")
    given = parser.parse_args(argv)
    numbers = promised(given.smallest)
    output = given.output or (None if given.smallest else NUMBERS)
    if output is not None:
        output.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    print(table_of(numbers))


def page() -> dict[str, str]:
    """Return the table of docs/promises.md by its name, from the committed numbers."""
    return {"promises-by-distance": table_of(json.loads(NUMBERS.read_bytes()))}


def promised(smallest: bool) -> dict[str, Any]:
    """Return, per method, radius and fold, the promise about the next client and the sealed clients' results."""
    about, stamp = registered(NAME)
    about |= about["smoke"] if smallest else {}
    tasks, _ = registered("promises")
    (task,) = (task for task in tasks_of(tasks, "smoke" if smallest else "full") if task.name == about["task"])
    clients = task.clients()
    rows: list[dict[str, Any]] = []
    for number, (seen_ones, calibrating, sealed_ones) in enumerate(task.folds(clients.num_clients)):
        seen, calibration = apart(clients, seen_ones, calibrating)
        _, sealed = apart(clients, seen_ones, sealed_ones)
        confidence = about["confidence"] if len(calibrating) > 18 else 0.8
        for method in about["methods"]:
            run = trained(task, method, seen)
            for radius in about["radii"]:
                options: dict[str, Any] = {"metric": about["metric"], "confidence": confidence}
                result = wafl.next_client(run, seen, calibration, radius=radius, **options)
                promise = result.publish(own_sampling=False)
                happened = happened_to(run.module, promise, sealed)
                row = {"method": method, "fold": number, "radius": radius, "promised": promise.values["next"]}
                rows.append({**row, "happened": happened})
                print(row, flush=True)
    about = {name: about[name] for name in ("task", "metric", "confidence", "radii", "methods")}
    return {"registered": stamp, **about, "rows": rows}


def table_of(numbers: Mapping[str, Any]) -> str:
    """Make a Markdown table: by distance, the promised error rate and the sealed clients' quantile, in percent."""
    methods: list[str] = numbers["methods"]
    head = ["distance", *(f"{method}: {what}" for method in methods for what in ("promised", "measured"))]
    lines: list[list[str]] = []
    for radius in numbers["radii"]:
        cells = [f"{radius:g}"]
        for method in methods:
            rows = [row for row in numbers["rows"] if (row["method"], row["radius"]) == (method, radius)]
            errors = sorted(value for row in rows for value in row["happened"])
            index = min(len(errors), math.ceil((len(errors) + 1) * numbers["confidence"])) - 1
            cells += [f"{100.0 * fmean(row['promised'] for row in rows):.1f}", f"{100.0 * errors[index]:.1f}"]
        lines.append(cells)
    return table(head, lines)


if __name__ == "__main__":
    main()
