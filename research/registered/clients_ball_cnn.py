"""Clients of another kind with a small CNN: the clients' ball at the inputs and at a layer, and its rivals.

    python -m research clients-ball-cnn [--device cuda] [--only TASK ...] [--processes N] [--work FOLDER]
        [--output docs/evidence/clients-ball-cnn.json] [--smallest]

What is trained, tested and decided is in ``experiments/drafts/clients-ball-cnn.toml``, and its tasks are the images of
``experiments/registered/clients-ball.toml``. The sizes and rates of a method train in one batch. The tables have the
mean log-loss of target clients, and differences from decay with 95% intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks import options
from research.clients_ball import networks
from research.clients_ball.tasks import load
from research.registered import splits as shared
from research.registered.clients_ball import after_holm, losses, ranks, sides
from research.registered.splits import Rows, table
from research.registration import registered, registered_or_draft, require_registered

NAME, TASKS = "clients-ball-cnn", "clients-ball"
FIRST = "clients' ball at a layer"
"""The method of the primary question."""
METHODS = list(networks.CONTENDERS)
OTHERS = [name for name in METHODS if name != "decay"]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    shared.add_options(parser, NAME)
    parser.add_argument("--device", default="cpu")
    given = options.read(parser, argv)
    if not given.smallest:
        require_registered(NAME)
    about, stamp = registered_or_draft(NAME)
    small, every = about.pop("smoke"), registered(TASKS)[0]["tasks"]
    if given.smallest:
        about |= small
    else:
        about["tasks"] = {name: {**every[name], "seed": list(every).index(name)} for name in about["tasks"]}
    jobs = [{"task": task, "about": about} for task in about["tasks"] if task in (given.only or [task])]
    print(report(shared.rows_of(partial(measure, device=given.device), jobs, stamp, given), about))


def measure(task: str, about: Mapping[str, Any], device: str) -> Rows:
    """Return the results of every method on one task."""
    described = about["tasks"][task]
    return [{"task": task, **networks.measure(load(described, described["seed"]), about, device)}]


def report(rows: Rows, about: Mapping[str, Any]) -> str:
    """Return the mean ranks and the tables as Markdown."""
    beyond, controls = sides(rows, about)
    level, parts = about["verdict"]["level"], list[str]()
    if beyond:
        parts += [summary(beyond, level), losses(beyond, "scaled", "log-loss with a temperature", level, OTHERS)]
        parts.append(losses(beyond, "plain", "log-loss without a temperature", level, OTHERS))
    if controls:
        parts.append(losses(controls, "scaled", "controls, log-loss with a temperature", level, OTHERS))
    return "\n\n".join(parts)


def summary(rows: Rows, level: float) -> str:
    """Return a row per method: its mean ranks, and on how many tasks the ball at a layer is better or worse."""
    scaled, plain = (ranks(rows, kind, methods=METHODS) for kind in ("scaled", "plain"))
    compared = after_holm(rows, level, FIRST, METHODS)
    lines: list[list[str]] = []
    for name in sorted(METHODS, key=scaled.__getitem__):
        ball = "" if name == FIRST else " / ".join(map(str, compared[name]))
        lines.append([name, f"{scaled[name]:.1f}", f"{plain[name]:.1f}", ball])
    return table(["method", "rank in log-loss", "without a temperature", f"{FIRST} better / worse"], lines)


if __name__ == "__main__":
    main()
