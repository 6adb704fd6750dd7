"""Calibrate prediction sets on natural and made tasks, and measure them at sealed clients, at rest and attacked.

    python -m research sealed-sets [--output docs/evidence/sealed-sets.json] [--smallest]

The experiment is ``experiments/registered/sealed-sets.toml``. Finished tasks are kept in ``runs/sealed-sets``. Its
page is docs/sealed-sets.md: ``python -m research pages`` fills it in.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import wafl
from benchmarks import options
from research import jobs
from research.experiment import ROOT
from research.promises.phases import trained
from research.promises.sets_page import tables
from research.promises.tasks import Task, apart, tasks_of
from research.registration import registered
from wafl.data.federation import Federation
from wafl.results.run import Run
from wafl.sets.answers import Client, Scorer, with_room
from wafl.sets.coverage import Coverage
from wafl.sets.held_out import read_clients

NAME = "sealed-sets"
NUMBERS = ROOT / "docs" / "evidence" / f"{NAME}.json"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--output", type=Path, help=f"the file of the numbers; by default {NUMBERS.name}, or none")
    jobs.add_options(parser, NAME)
    given = options.read(parser, argv)
    about, stamp = registered(NAME)
    tasks = tasks_of(registered(about["tasks"])[0], "smoke" if given.smallest else "full")
    absent = {task.name: missing for task in tasks if (missing := task.missing) is not None}
    here = {task.name: task for task in tasks if task.name not in absent}
    rows = jobs.kept(given, stamp).run(partial(of_task, about), here)
    numbers = {"registered": stamp, "absent": absent, "rows": [row for each in rows.values() for row in each]}
    output = given.output or (None if given.smallest or given.done else NUMBERS)
    if output is not None:
        output.write_text(json.dumps(numbers) + "\n", encoding="utf-8")
    print(tables(numbers, about)[NAME])


def page() -> dict[str, str]:
    """Return the tables of docs/sealed-sets.md by name, from the committed numbers."""
    return tables(json.loads(NUMBERS.read_bytes()), registered(NAME)[0])


def of_task(about: Mapping[str, Any], task: Task) -> list[dict[str, Any]]:
    """Return one row per fold, method, radius and kind of sets."""
    clients, rows = task.clients(), list[dict[str, Any]]()
    for number, (seen_ones, calibrating, sealed_ones) in enumerate(task.folds(clients.num_clients)):
        seen, calibration = apart(clients, seen_ones, calibrating)
        _, sealed = apart(clients, seen_ones, sealed_ones)
        for method in about["methods"]:
            fold = {"task": task.name, "fold": number, "method": method, "classes": clients.num_classes}
            fold |= {"calibration": calibration.num_clients}
            measured = measure(about, trained(task, method, seen), seen, calibration, sealed)
            rows += [fold | row for row in measured]
    return rows


def measure(
    about: Mapping[str, Any], run: Run, seen: Federation, calibration: Federation, sealed: Federation
) -> Iterator[dict[str, Any]]:
    """Calibrate each kind of sets at each radius, and measure it at the sealed clients."""
    fixed = {"norm": about["norm"], "power": about["power"], "training": seen}
    calibrate = partial(wafl.prediction_sets, run, calibration, **fixed)
    rest = first(lambda level: calibrate(confidence=level), about["confidences"])
    scorer = rest.scorer
    pooled = pooled_threshold(list(read_clients(scorer, calibration).values()), about["coverage"])
    at_rest = read_clients(scorer, sealed)
    for radius in about["radii"]:
        client = first(
            lambda level, r=radius: calibrate(coverage=about["coverage"], confidence=level, radius=r),
            about["confidences"],
        )
        example = first(
            lambda level, r=radius: calibrate(coverage=level, about="example", radius=r), about["coverages"]
        )
        for name, threshold, target in (
            ("pooled", pooled, about["coverage"]),
            ("example", example.threshold, example.target.coverage),
            ("client", client.threshold, client.target.coverage),
        ):
            before = Coverage.of(at_rest, threshold, target, of_classes=scorer.score.of_classes)
            covered = list(before.covered) if radius == 0 else attacked(scorer, sealed, threshold, radius)
            yield {
                "radius": radius,
                "sets": name,
                "promised": target,
                "confidence": client.target.confidence if name == "client" else None,
                "threshold": threshold if math.isfinite(threshold) else None,
                "covered": covered,
                "sizes": [size if math.isfinite(size) else None for size in before.sizes],
                "full": sum(before.full) / sum(before.examples),
            }


def first(calibrate: Callable[[float], wafl.PredictionSets], levels: Sequence[float]) -> wafl.PredictionSets:
    """Return the sets of the first level that the calibration clients support."""
    for level in levels[:-1]:
        try:
            return calibrate(level)
        except wafl.PreconditionError:
            continue
    return calibrate(levels[-1])


def pooled_threshold(clients: Sequence[Client], coverage: float) -> float:
    """Return the ``ceil(coverage (N + 1))``-th smallest of all scores."""
    scores = sorted(score for client in clients for score in client.scores)
    rank = math.ceil(round(coverage * (len(scores) + 1), 9))
    return scores[rank - 1] if rank <= len(scores) else math.inf


def attacked(scorer: Scorer, clients: Federation, threshold: float, radius: float) -> list[float]:
    """Return the share of each client's labels that are covered after an attack on a linear model in l2."""
    (layer,) = (each for each in scorer.problem.task.module.modules() if isinstance(each, nn.Linear))
    weight, bias = (each.detach().double().numpy() for each in (layer.weight, layer.bias))
    examples, covered = clients.examples, list[float]()
    for begin, end in pairwise(examples.offsets.tolist()):
        rows = torch.arange(begin, end)
        x, y = examples.rows(rows, torch.float64), examples.y[rows]
        flat, labels = x.flatten(1).numpy(), y.flatten().numpy()
        outputs, everyone = flat @ weight.T + bias, np.arange(len(labels))
        if scorer.score.of_classes:
            leads, gradients = outputs - outputs[everyone, labels][:, None], weight[None] - weight[labels][:, None]
            leads[everyone, labels] = -np.inf
            level = max(with_room(threshold), 0.0)  # the class with the largest output is in every set
        else:
            residual = outputs[:, 0] - labels
            leads, level = np.stack([residual, -residual], axis=1), with_room(threshold)
            gradients = np.broadcast_to(np.stack([weight[0], -weight[0]]), (len(rows), 2, weight.shape[1]))
        moved = flat + worst_moves(leads, gradients, level, radius)
        client = Client(scorer, torch.from_numpy(moved).view_as(x), y)
        covered.append(client.covered(threshold) / client.size)
    return covered


def worst_moves(leads: np.ndarray, gradients: np.ndarray, level: float, radius: float) -> np.ndarray:
    """Return moves that raise a lead above the level, the shortest first while the mean square allows it.

    Args:
        leads: of each example, linear functions of its features, ``[n, m]``; one of them above the level is a miss.
        gradients: their gradients, ``[n, m, features]``.
        level: the level.
        radius: the root mean square of the lengths, at most.
    """
    everyone, steep = np.arange(len(leads)), np.linalg.norm(gradients, axis=2)
    gaps = np.divide(level - leads, steep, out=np.full_like(leads, np.inf), where=steep > 0.0)
    best = gaps.argmin(1)
    gap = gaps[everyone, best]
    length = np.where(gap < 0.0, 0.0, gap * (1.0 + 1e-9) + 1e-9)
    order = np.argsort(length)
    chosen = order[np.cumsum(length[order] ** 2) <= len(leads) * radius**2]
    moves = np.zeros_like(gradients[:, 0])
    toward = gradients[chosen, best[chosen]] / steep[chosen, best[chosen]][:, None]
    moves[chosen] = length[chosen][:, None] * toward
    return moves
