"""Few examples per client: a radius by a rule of their number, or "auto", against a weight decay that is tuned.

    python -m research few-examples [--only mnist smartwatch ...] [--processes N] [--work FOLDER]
        [--tables FOLDER] [--output docs/evidence/few-examples.json] [--smallest]

``experiments/registered/few-examples.toml`` defines training, tests and decision. The tables have regrets against
the best decay in hindsight, with 95% intervals, smaller being better; bold differs from the tuned decay's regret, for
each rule after Holm over the tasks.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from statistics import fmean
from typing import Any

import numpy as np
import torch

import wafl
from benchmarks import options
from research.registered import splits as shared
from research.registered.splits import Gap, Pair, Rows, table
from research.registration import registered
from wafl.base.errors import DivergedError, UnboundedError

NAME = "few-examples"
NUMBERS = {"loss": ("log-loss", 1.0), "accuracy": ("accuracy, points", -100.0)}
"""The judged numbers, their names, and the factors that make smaller values better."""
TUNED = "tuned decay"
IMAGES = ("digits", "mnist")
DRAWS = 20_000


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    shared.add_options(parser, NAME)
    given = options.read(parser, argv)
    about, stamp = registered(NAME)
    if given.smallest:
        about |= about.pop("smoke")
    jobs = [
        {"task": task, "examples": examples, "split": split, "about": about}
        for examples in reversed(about["examples"])
        for task in reversed(about["tasks"])
        if task in (given.only or [task])
        for split in range(about["splits"])
    ]
    print(report(shared.rows_of(measure, jobs, stamp, given), about))


def page() -> dict[str, str]:
    """Return the table of the page, from its committed numbers."""
    return shared.reported(NAME, report)


def measure(task: str, examples: int, split: int, about: Mapping[str, Any]) -> Rows:
    """Return the results of every decay, the tuned one and every rule on one split; none for too few examples."""
    everybody, test, classes = data_of(task, split, about)
    if 2 * sum(len(y) >= examples for _, y in everybody) < len(everybody):
        return []
    draws = np.random.default_rng([split, examples])
    few: list[Pair] = []
    for x, y in everybody:
        chosen = draws.permutation(len(y))[:examples]
        few.append((x[chosen], y[chosen]))
    train, test = shared.prepared(few, test, scale=task not in IMAGES)
    decays = by_decay(train, test, classes, split, about)
    folds = [by_decay(*parts, classes, split, about) for parts in folds_of(train, about["folds"], draws)]
    tuned = {
        number: min(range(len(decays)), key=lambda index: sign * fmean(fold[index][number] for fold in folds))
        for number, (_, sign) in NUMBERS.items()
    }
    key = {"task": task, "examples": examples, "split": split, "ratio": len(test) / len(train)}
    return [{**key, "decays": decays, "tuned": tuned, "rules": by_rule(train, test, classes, split, about)}]


def data_of(task: str, split: int, about: Mapping[str, Any]) -> tuple[list[Pair], list[Pair], int]:
    """Return all examples of the training clients and of the others, and the number of classes."""
    if task not in IMAGES:
        return shared.people(task, about["unseen"], split)
    sizes = (float(about["images"]), 0.0) if task == "mnist" else None
    options: dict[str, Any] = {"labels_per_client": 3, "sizes": sizes, "preprocess": "unit", "seed": split}
    clients = wafl.load_dataset(task).partition(about["clients"], **options)
    seen, unseen = clients.hold_out(about["unseen"], seed=split)
    return shared.by_client(seen), shared.by_client(unseen), clients.num_outputs


def folds_of(pairs: Sequence[Pair], count: int, draws: np.random.Generator) -> list[tuple[list[Pair], list[Pair]]]:
    """Return the clients that train and the clients that judge, each of them once."""
    parts = np.array_split(draws.permutation(len(pairs)), count)
    return [
        ([pair for index, pair in enumerate(pairs) if index not in part], [pairs[index] for index in part])
        for part in parts
    ]


def by_decay(
    train: Sequence[Pair], test: Sequence[Pair], classes: int, seed: int, about: Mapping[str, Any]
) -> list[dict[str, float]]:
    """Return the scores of FedAvg with each decay."""
    clients, bent = shared.federation(train, classes), shared.curvature(train)
    schedule = shared.to_optimum(bent, about["rounds"])
    method = wafl.FedAvgM()
    grid = {"weight_decay": [decay * bent for decay in about["decays"]]}
    runs = wafl.sweep(wafl.models.mlr(clients), clients, method, grid, seed=seed, **schedule)
    return [score(run.model, test) for run in runs]


def by_rule(
    train: Sequence[Pair], test: Sequence[Pair], classes: int, seed: int, about: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the radius and the scores of each rule; where training diverges, the scores of guessing."""
    clients, (x, _) = shared.federation(train, classes), shared.joined(train)
    spectrum = np.linalg.svd(x - x.mean(0), compute_uv=False) ** 2 / len(x)
    largest = math.sqrt(2.0 * spectrum[0] * math.log(1.0 / about["alpha"]) / len(x))
    squares = np.random.default_rng(0).chisquare(1.0, (DRAWS, len(spectrum))) @ spectrum
    profile = math.sqrt(float(np.quantile(squares, 1.0 - about["alpha"])) / len(x))
    balls: dict[str, dict[str, Any]] = {
        "1/sqrt(n)": {"radius": largest},
        "profile": {"radius": profile, "power": 1},
        "auto": {"radius": "auto"},
    }
    result: dict[str, dict[str, Any]] = {}
    schedule = shared.to_optimum(shared.curvature(train), about["rounds"])
    for name, ball in balls.items():
        given: dict[str, Any] = {**ball, "bounds": None, "server": wafl.servers.momentum()}
        model, method = wafl.models.mlr(clients), wafl.WAFL(**given)
        result[name] = ball | score(model, test)
        with suppress(DivergedError, UnboundedError):
            run = wafl.fit(model, clients, method, seed=seed, **schedule)
            chosen = run.settings.get("chosen", ball)["radius"]
            result[name] = {**ball, "radius": chosen, **score(run.model, test)}
    return result


def score(model: torch.nn.Module, test: Sequence[Pair]) -> dict[str, float]:
    """Return the accuracy and the mean log-loss on all examples."""
    x, y = shared.joined(test)
    with torch.no_grad():
        logs = copy.deepcopy(model).double()(torch.from_numpy(x)).log_softmax(-1).numpy()
    return {"accuracy": float(np.mean(logs.argmax(1) == y)), "loss": float(-np.mean(logs[np.arange(len(y)), y]))}


def regrets(rows: Rows, number: str) -> dict[str, dict[int, dict[str, float]]]:
    """Return, by task and split, the regret of the tuned decay and of every rule, averaged over numbers of examples."""
    sign, result = NUMBERS[number][1], {}
    for task, examples in dict.fromkeys((row["task"], row["examples"]) for row in rows):
        here = [row for row in rows if (row["task"], row["examples"]) == (task, examples)]
        decays = np.array([[sign * each[number] for each in row["decays"]] for row in here])
        best = int(decays.mean(0).argmin())
        for row, values in zip(here, decays, strict=True):
            scored = {TUNED: values[row["tuned"][number]]}
            scored |= {name: sign * rule[number] for name, rule in row["rules"].items()}
            of_split = result.setdefault(task, {}).setdefault(row["split"], {})
            for name, value in scored.items():
                of_split.setdefault(name, []).append(float(value - values[best]))
    return {
        task: {split: {name: fmean(each) for name, each in of_split.items()} for split, of_split in by_split.items()}
        for task, by_split in result.items()
    }


def judged(rows: Rows, number: str, about: Mapping[str, Any]) -> tuple[list[list[str]], dict[str, list[Gap]]]:
    """Return the lines of a table, and by rule, its lead over the tuned decay on each task, after Holm."""
    by_task, ratios = regrets(rows, number), {row["task"]: row["ratio"] for row in rows}
    names = [TUNED, *about["rules"]]
    ahead = {
        rule: shared.holm([
            shared.corrected([each[TUNED] - each[rule] for each in by_split.values()], ratios[task])
            for task, by_split in by_task.items()
        ])
        for rule in about["rules"]
    }  # fmt: skip
    lines: list[list[str]] = []
    for index, (task, by_split) in enumerate(by_task.items()):
        cells: list[str] = []
        for name in names:
            gap = shared.corrected([each[name] for each in by_split.values()], ratios[task])
            sure = name != TUNED and ahead[name][index].p < about["verdict"]["level"]
            cells.append(f"**{gap}**" if sure else str(gap))
        lines.append([task, *cells])
    return lines, ahead


def report(rows: Rows, about: Mapping[str, Any]) -> str:
    """Return the verdict, and a table of regrets for log-loss and accuracy by number of examples, as Markdown."""
    level, parts, heads = about["verdict"]["level"], [], [TUNED, *about["rules"]]
    _, ahead = judged(rows, "loss", about)
    for rule, listed in ahead.items():
        won, lost = (sum(gap.p < level and side * gap.mean > 0 for gap in listed) for side in (1, -1))
        reached = f" The goal is {'' if 2 * won > len(listed) and not lost else 'not '}reached." if not parts else ""
        better, worse = ({0: "no task", 1: "one task"}.get(each, f"{each} tasks") for each in (won, lost))
        where = f"significantly better than the tuned decay on {better} and significantly worse on {worse}"
        parts.append(f"Of {len(listed)} tasks, *{rule}* is {where}.{reached}")
    for number, (words, _) in NUMBERS.items():
        parts.append(table([f"regret in {words}", *heads], judged(rows, number, about)[0]))
        lines: list[list[str]] = []
        for examples in about["examples"]:
            of_size = [row for row in rows if row["examples"] == examples]
            lines += [[f"{line[0]}, {examples}", *line[1:]] for line in judged(of_size, number, about)[0]]
        parts.append(table([f"regret in {words}, by examples of a client", *heads], lines))
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
