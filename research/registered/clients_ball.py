"""Clients of another kind: the ball in the clients' metric against its rivals, with exactly solved linear models.

    python -m research clients-ball [--only TASK ...] [--processes N] [--work FOLDER]
        [--output docs/evidence/clients-ball.json] [--smallest]

What is trained, tested and decided is in ``experiments/registered/clients-ball.toml``; research/clients_ball has the
objectives, the solver and the tasks. The tables have the mean log-loss of target clients, and differences from decay
with 95% intervals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import t as student

from benchmarks import options
from research.clients_ball import selection
from research.clients_ball.tasks import load
from research.registered import splits as shared
from research.registered.splits import Gap, Rows, table
from research.registration import registered

NAME = "clients-ball"
RIVALS = [name for name in selection.METHODS if name not in selection.ORDERS]
COMPARED = [selection.BALL, *RIVALS]
SHOWN = [*selection.ORDERS, *(name for name in RIVALS if name != "decay")]
"""The methods of the tables by task, beside decay."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    shared.add_options(parser, NAME)
    given = options.read(parser, argv)
    about, stamp = registered(NAME)
    if given.smallest:
        about |= about.pop("smoke")
    jobs = [{"task": task, "about": about} for task in about["tasks"] if task in (given.only or [task])]
    print(report(shared.rows_of(measure, jobs, stamp, given), about))


def page() -> dict[str, str]:
    """Return the tables of the page, from their committed numbers."""
    return shared.reported(NAME, report)


def measure(task: str, about: Mapping[str, Any]) -> Rows:
    """Return the results of every method on one task."""
    seed = list(about["tasks"]).index(task)
    return [{"task": task, **selection.measure(load(about["tasks"][task], seed), about)}]


def gap(row: Mapping[str, Any], first: str, second: str, kind: str, number: str = "loss") -> Gap:
    """Return the first method less the second, paired by target client, with the registered interval."""
    one, other = (row["methods"][name][kind] for name in (first, second))
    paired = np.array(one[number]) - np.array(other[number])
    of_targets = float(paired.var(ddof=1)) / len(paired)
    left = row["left_out"]
    again = np.array(one["draws"]) - np.array(other["draws"])
    of_sets = (row["clients"] - left) / left * float(again.var(ddof=1)) if number == "loss" else 0.0
    variance, mean = of_targets + of_sets, float(paired.mean())
    if variance <= 0.0:
        return Gap(mean, 0.0, float(mean == 0.0))
    freedom = variance**2 / (of_targets**2 / (len(paired) - 1) + of_sets**2 / (len(again) - 1))
    error = math.sqrt(variance)
    p = 2.0 * float(student.sf(abs(mean) / error, freedom))
    return Gap(mean, float(student.ppf(0.975, freedom)) * error, p)


def mean(row: Mapping[str, Any], name: str, kind: str, number: str = "loss") -> float:
    """Return a method's mean over target clients; ``worst`` is the loss of their worst tenth."""
    values = np.array(row["methods"][name][kind]["loss" if number == "worst" else number])
    if number == "worst":
        values = np.sort(values)[-max(1, round(0.1 * len(values))) :]
    return float(values.mean())


def ranks(rows: Rows, kind: str, number: str = "loss", methods: Sequence[str] = COMPARED) -> dict[str, float]:
    """Return the mean rank of each method; ties share a rank."""
    sign = -1.0 if number == "accuracy" else 1.0
    every: list[list[float]] = []
    for row in rows:
        values = [round(sign * mean(row, name, kind, number), 5) for name in methods]
        every.append([sum(v < own for v in values) + (1 + values.count(own)) / 2 for own in values])
    return dict(zip(methods, np.array(every).mean(0).tolist(), strict=True))


def sides(rows: Rows, about: Mapping[str, Any]) -> tuple[Rows, Rows]:
    """Return the rows of tasks whose targets lie beyond, and the controls."""
    controls = [row for row in rows if about["tasks"][row["task"]].get("drawn")]
    return [row for row in rows if row not in controls], controls


def counts(rows: Rows, first: str, second: str, kind: str, level: float) -> tuple[int, int]:
    """Return on how many tasks the first method is better and worse than the second, with confidence."""
    gaps = [gap(row, first, second, kind) for row in rows]
    return sum(each.p < level and each.mean < 0 for each in gaps), sum(
        each.p < level and each.mean > 0 for each in gaps
    )


def after_holm(
    rows: Rows, level: float, name: str = selection.BALL, methods: Sequence[str] = COMPARED
) -> dict[str, tuple[int, int]]:
    """Return on how many tasks a method is better and worse than each rival, after Holm over the rivals of a task."""
    rivals = [each for each in methods if each != name]
    result: dict[str, tuple[int, int]] = dict.fromkeys(rivals, (0, 0))
    for row in rows:
        for rival, each in zip(rivals, shared.holm([gap(row, name, rival, "scaled") for rival in rivals]), strict=True):
            won, lost = result[rival]
            result[rival] = won + (each.p < level and each.mean < 0), lost + (each.p < level and each.mean > 0)
    return result


def report(rows: Rows, about: Mapping[str, Any]) -> str:
    """Return the verdict, and the tables, as Markdown."""
    beyond, controls = sides(rows, about)
    parts: list[str] = []
    level = about["verdict"]["level"]
    if beyond:
        parts.append(verdict(beyond, about))
        parts.append(summary(beyond, about))
        for kind, words in (("scaled", "with a temperature"), ("plain", "without a temperature")):
            parts.append(losses(beyond, kind, f"log-loss {words}", level))
    if controls:
        parts.append(losses(controls, "scaled", "controls, log-loss with a temperature", level))
    return "\n\n".join(parts)


def verdict(rows: Rows, about: Mapping[str, Any]) -> str:
    """Return whether the goal is reached, in two sentences."""
    won, lost = after_holm(rows, about["verdict"]["level"])["decay"]
    by_rank = sorted(ranks(rows, "scaled").items(), key=lambda pair: pair[1])
    best, total = by_rank[0], len(rows)
    own = dict(by_rank)[selection.BALL]
    reached = 3 * won >= 2 * total and best[0] == selection.BALL
    return (
        f"**The goal is {'' if reached else 'not '}reached.** The clients' ball is better than decay, with confidence, "
        f"on {won} of {total} tasks and worse on {lost}. Its mean rank is {own:.1f} of {len(COMPARED)}; the best is "
        f"{best[1]:.1f}, of *{best[0]}*."
    )


def summary(rows: Rows, about: Mapping[str, Any]) -> str:
    """Return a row per method: mean ranks, tasks where it is better or worse than decay, and the ball's comparison."""
    level = about["verdict"]["level"]
    against = after_holm(rows, level)
    scaled, plain = ranks(rows, "scaled"), ranks(rows, "plain")
    accurate, worst = ranks(rows, "scaled", "accuracy"), ranks(rows, "scaled", "worst")
    lines: list[list[str]] = []
    for name in sorted(COMPARED, key=scaled.__getitem__):
        won = "" if name == "decay" else " / ".join(map(str, counts(rows, name, "decay", "scaled", level)))
        ball = "" if name == selection.BALL else " / ".join(map(str, against[name]))
        lines.append([name, *(f"{each[name]:.1f}" for each in (scaled, plain, worst, accurate)), won, ball])
    heads = ["rank in log-loss", "without a temperature", "worst tenth", "accuracy"]
    return table(["method", *heads, "better / worse than decay", "ball better / worse"], lines)


def losses(rows: Rows, kind: str, title: str, level: float, others: Sequence[str] = SHOWN) -> str:
    """Return a row per task: decay's loss, and each other method's difference from it; bold with confidence."""
    lines = [
        [
            row["task"],
            f"{mean(row, 'decay', kind):.3f}",
            *(gap(row, name, "decay", kind).marked(level) for name in others),
        ]
        for row in rows
    ]
    return table([title, "decay", *others], lines)


if __name__ == "__main__":
    main()
