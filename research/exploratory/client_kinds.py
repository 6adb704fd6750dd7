"""Clients of another kind, on the tasks where the experiment ``clients-ball`` was developed: vowels and turned digits.

    python -m research client-kinds [--only TASK ...] [--output docs/evidence/client-kinds.json] [--smallest]

One training set per task. Sizes are chosen as in ``experiments/registered/clients-ball.toml``, with more examples and
the precisions below. Vowels need praat-parselmouth.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from benchmarks import options
from research import drawing
from research.clients_ball import selection
from research.clients_ball.tasks import load
from research.experiment import ROOT
from research.markdown import table
from research.registered.clients_ball import COMPARED, mean, ranks, sides
from research.registration import registered

NUMBERS = ROOT / "docs" / "evidence" / "client-kinds.json"
REGISTERED = ROOT / "docs" / "evidence" / "clients-ball.json"
PICTURE = ROOT / "docs" / "images" / "client-kinds.png"
KINDS = {"m": "men", "w": "women", "c": "children"}
PAIRS = {"peterson-barney": ("c>m", "c>w", "m>c", "m>w", "mw>c", "w>c", "w>m", "wc>m"), "pols": ("m>w", "w>m")}
SIZES = {"clients": (20, 20), "examples": 100}
IMAGES = {
    "mnist-rotated": {"data": "mnist", "change": "rotated", "train": (0, 30), "target": (40, 60), **SIZES},
    "mnist-rotated-both-ways": {"data": "mnist", "change": "rotated", "train": (-15, 15), "target": (20, 40), **SIZES},
    "mnist-thickened": {"data": "mnist", "change": "thickened", "train": (0, 1), "target": (1.3, 2.5), **SIZES},
    "digits-rotated": {
        "data": "digits", "change": "rotated", "train": (0, 30), "target": (40, 60), "side": 8, "clients": (15, 15),
        "examples": 59,
    },
}  # fmt: skip
SHOWN = {"clients' ball": "tab:red", "random moves": "tab:blue", "decay in the clients' metric": "tab:green"}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(tasks()), default=list(tasks()))
    parser.add_argument("--output", type=Path, help="write the numbers to this file")
    given = options.read(parser, argv, only=["digits-rotated"])
    about: dict[str, Any] = registered("clients-ball")[0]
    about |= {"components": 40, "verdict": about["verdict"] | {"draws": 0}}
    about["trials"] |= {"extensions": 1, "precision": {"selection": 1e-4, "final": 1e-5}}
    if given.smallest:
        about |= {"trials": about["smoke"]["trials"]}
    rows: list[dict[str, Any]] = []
    for name in given.only:
        task = tasks()[name] | ({"clients": (8, 4), "examples": 40} if given.smallest else {})
        measured = selection.measure(load(task, 0), about)["methods"]
        rows.append({"task": name, "methods": {method: _means(measured[method]) for method in selection.METHODS}})
    if given.output is not None:
        given.output.write_text(written(rows))
    print(report(rows))


def tasks() -> dict[str, dict[str, Any]]:
    """Return all tasks by name."""
    vowels: dict[str, dict[str, Any]] = {}
    for data, pairs in PAIRS.items():
        for train, target in (pair.split(">") for pair in pairs):
            name = "-".join((data, *(KINDS[kind] for kind in train), "to", KINDS[target]))
            vowels[name] = {"data": data, "kinds": list(train), "target": target}
    return vowels | IMAGES


def _means(result: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results of a method with means over target clients instead of every client's number."""
    means = ("loss", "accuracy")
    return {
        kind: {key: [sum(value) / len(value)] if key in means else value for key, value in each.items()}
        for kind, each in result.items()
    }


def written(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the content of the file of numbers."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    return f'{{"command": "python -m research client-kinds", "rows": [\n{lines}\n]}}\n'


def page() -> dict[str, str]:
    """Return the table of the page, from its committed numbers."""
    return {"client-kinds": report(json.loads(NUMBERS.read_bytes())["rows"])}


def with_ball(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows that have the clients' ball, too: of the order with the smaller loss on held-out clients."""
    result: list[dict[str, Any]] = []
    for row in rows:
        methods = row["methods"]
        ball = {
            kind: min((methods[order][kind] for order in selection.ORDERS), key=lambda each: each["held_out"])
            for kind in selection.KINDS
        }
        result.append({**row, "methods": {**methods, selection.BALL: ball}})
    return result


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return mean ranks, and the log-loss of every method on every task, as Markdown."""
    whole = with_ball(rows)
    by_kind = {kind: ranks(whole, kind) for kind in selection.KINDS}
    order = sorted(COMPARED, key=by_kind["scaled"].__getitem__)

    def cells(kind: str, name: str) -> list[str]:
        better = sum(mean(row, name, kind) < mean(row, "decay", kind) for row in whole)
        return [f"{by_kind[kind][name]:.1f}", "" if name == "decay" else f"{better} of {len(whole)}"]

    lines = [[name, *cells("scaled", name), *cells("plain", name)] for name in order]
    heads = ["mean rank, with a temperature", "better than decay", "mean rank, without", "better than decay"]
    parts = [table(["method", *heads], lines)]
    for kind, words in (("scaled", "with a temperature"), ("plain", "without")):
        each = [[row["task"], *(f"{mean(row, name, kind):.2f}" for name in order)] for row in whole]
        parts.append(table([f"log-loss, {words}", *order], each))
    each = [[row["task"], *(f"{100.0 * mean(row, name, 'scaled', 'accuracy'):.1f}" for name in order)] for row in whole]
    parts.append(table(["accuracy, %", *order], each))
    return "\n\n".join(parts)


def draw() -> None:
    """Draw each task's log-loss minus the log-loss of decay, on these tasks and on the registered ones."""
    developed = with_ball(json.loads(NUMBERS.read_bytes())["rows"])
    tested, _ = sides(json.loads(REGISTERED.read_bytes())["rows"], registered("clients-ball")[0])
    groups = {"tasks of the development": (developed, "o", "none"), "registered tasks": (tested, "o", "full")}
    with drawing.large():
        figure = Figure(figsize=(drawing.WIDTH, 4.6), layout="constrained")
        axes = figure.subplots()
        for line, (method, color) in enumerate(SHOWN.items()):
            for place, (rows, marker, fill) in zip((0.2, -0.2), groups.values(), strict=True):
                gains = [mean(row, method, "scaled") - mean(row, "decay", "scaled") for row in rows]
                look: dict[str, Any] = {"color": color, "fillstyle": fill, "markersize": 9, "linestyle": ""}
                axes.plot(gains, [line + place] * len(gains), marker, **look)
                axes.plot([fmean(gains)] * 2, [line + place - 0.15, line + place + 0.15], color=color, linewidth=4)
        axes.axvline(0.0, color="black")
        axes.set_yticks(range(len(SHOWN)), [name.replace("decay in", "decay in\n") for name in SHOWN])
        axes.set_xlabel("log-loss minus weight decay's; left of 0 is better")
        for name, (_, marker, fill) in groups.items():
            axes.plot([], [], marker, color="black", fillstyle=fill, linestyle="", label=name)
        figure.legend(loc="outside upper center", ncols=2)
        figure.savefig(PICTURE, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
