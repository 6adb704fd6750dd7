"""Train a small CNN by each method, choose sizes and rates on clients that train alone, and test target clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

import wafl
from research.clients_ball.coral import Coral
from research.clients_ball.geometry import root_of, scores
from research.clients_ball.objectives import Array, Examples
from research.clients_ball.selection import KINDS, by_client
from research.clients_ball.solver import temperature
from research.clients_ball.tasks import Split, prepared
from wafl.base.errors import DivergedError
from wafl.methods import Method
from wafl.parts.schedule import make_schedule
from wafl.train.fit import Setting, train
from wafl.train.spec import Spec

HIDDEN = "8"
"""The name of the last hidden layer."""
TOGETHER = 100_000
"""Lanes computed together: all, since CORAL compares the clients of a run."""
Point = tuple[float, float]
"""A size and a learning rate."""
Build = Callable[[float, "Setup"], Method]


@dataclass(frozen=True)
class Setup:
    """Clients that train, with the roots of their differences at the inputs and, after a warm-up, at a layer."""

    examples: Examples
    root: Array
    decay: float
    layer_root: Array | None = None
    start: nn.Module | None = None


@dataclass(frozen=True)
class Contender:
    """How to build a method of a size; which grid it has, and whether the chosen weight decay is added."""

    build: Build
    grid: str
    decay: bool = False
    warm: bool = False


def _round(root: Array) -> Array:
    """Return a round cost matrix in which a left-out client is as far away."""
    return np.full(len(root), math.sqrt(np.trace(root @ root.T) / len(root)))


CONTENDERS = {
    "decay": Contender(lambda size, _: wafl.FedAvg(), "decay"),
    "round ball": Contender(lambda size, at: wafl.WAFL(radius=size, cost_matrix=_round(at.root), steps=5), "radius"),
    "clients' ball": Contender(lambda size, at: wafl.WAFL(radius=size, cost_matrix=at.root, steps=5), "radius"),
    "clients' ball at a layer": Contender(
        lambda size, at: wafl.WAFL(radius=size, space=HIDDEN, cost_matrix=at.layer_root, steps=5), "radius", warm=True
    ),
    "random moves": Contender(lambda size, at: wafl.Moved(noise=size, cost_matrix=at.root), "noise"),
    "GroupDRO": Contender(lambda size, _: wafl.METHODS["GroupDRO"](weights_step=size), "groups", decay=True),
    "IRM": Contender(lambda size, _: wafl.IRM(penalty=size), "penalty", decay=True),
    "CORAL": Contender(
        lambda size, _: replace(wafl.FedAvg(), name="CORAL", objective=Coral(penalty=size, space=HIDDEN)),
        "penalty", decay=True,
    ),
    "FedSR": Contender(
        lambda size, _: wafl.FedSR(l2=size, cmi=size / 10.0, space=HIDDEN), "representation", decay=True
    ),
}  # fmt: skip


def network(side: int, classes: int, channels: Sequence[int], hidden: int) -> nn.Sequential:
    """Return the untrained network, the same for all methods and training sets."""
    first, second = channels
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, first, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(second * (side // 4) ** 2, hidden), nn.ReLU(), nn.Linear(hidden, classes),
        )  # fmt: skip


def images_of(examples: Examples) -> torch.Tensor:
    """Return gray images ``[N, 1, side, side]``."""
    side = math.isqrt(examples.x.shape[1])
    return torch.from_numpy(examples.x).float().view(-1, 1, side, side)


def federation(examples: Examples) -> wafl.Federation:
    """Return clients that train on all their examples."""
    x = images_of(examples).numpy()
    pairs = [(x[examples.owner == who], examples.y[examples.owner == who]) for who in range(examples.clients)]
    return wafl.Federation.from_arrays(pairs, test_fraction=0.0, num_classes=examples.classes)


def trained(
    contender: Contender, points: Sequence[Point], at: Setup, about: Mapping[str, Any], device: str
) -> list[wafl.Run | None]:
    """Return the run of every size and rate, all in one batch; None for those that diverged."""
    model, schedule, warm = at.start, dict(about["schedule"]), about["warm_up"]
    if contender.warm:
        schedule["rounds"] -= warm
    else:
        model = network(math.isqrt(at.examples.x.shape[1]), at.examples.classes, **about["network"])
    assert model is not None
    specs: list[Spec] = []
    for size, rate in points:
        decay = size if contender.grid == "decay" else at.decay if contender.decay else about["trials"]["floor"]
        timing = make_schedule({**schedule, "learning_rate": rate, "weight_decay": decay})
        specs.append(Spec(contender.build(size, at), timing, {"size": size, "learning_rate": rate}))
    setting = Setting(device=device, chunk_size=TOGETHER, check_optimum=False)
    try:
        runs = train(setting.trainer(model, federation(at.examples)), specs)
    except DivergedError:
        return [None] * len(points)
    return [None if run.diverged else run for run in runs]


def warmed(at: Setup, point: Point, about: Mapping[str, Any], device: str) -> Setup:
    """Return the setup with FedAvg's model after the warm-up, and the root of the clients' differences at its layer."""
    short = {**about, "schedule": {**about["schedule"], "rounds": about["warm_up"]}}
    (run,) = trained(CONTENDERS["decay"], [point], at, short, device)
    if run is None:
        raise RuntimeError("the warm-up diverged at the rate that was chosen for weight decay")
    assert isinstance(run.model, nn.Sequential)
    with torch.no_grad():
        features = run.model[: int(HIDDEN) + 1](images_of(at.examples)).double().numpy()
    return replace(at, layer_root=root_of(replace(at.examples, x=features)), start=run.model)


def logits_of(run: wafl.Run, examples: Examples) -> Array:
    """Return the outputs of a trained model."""
    with torch.no_grad():
        return run.model(images_of(examples)).double().numpy()


def measure(split: Split, about: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Return, by method and kind, its size, rate, and the losses and accuracies of target clients, also after draws."""
    trials, verdict = about["trials"], about["verdict"]
    folds = [(Setup(near, root_of(near), 0.0), far) for near, far in folds_of(split, about)]
    clients, draws = split.train.clients, np.random.default_rng(0)
    count = round(verdict["share_drawn"] * clients)
    drawn = [np.sort(draws.permutation(clients)[:count]) for _ in range(verdict["draws"])]
    sets = [Setup(some, root_of(some), 0.0) for some in (split.train, *map(split.train.of, drawn))]
    results: dict[str, dict[str, Any]] = {}
    for name, contender in CONTENDERS.items():
        if contender.warm:
            point = (results["decay"]["plain"]["size"], results["decay"]["plain"]["rate"])
            folds = [(warmed(at, point, about, device), far) for at, far in folds]
            sets = [warmed(at, point, about, device) for at in sets]
        chosen = choose(contender, folds, trials, about, device)
        if name == "decay":
            decay = chosen["plain"][0][0]
            folds = [(replace(at, decay=decay), far) for at, far in folds]
            sets = [replace(at, decay=decay) for at in sets]
        points = list(dict.fromkeys(point for point, *_ in chosen.values()))
        runs = [dict(zip(points, trained(contender, points, at, about, device), strict=True)) for at in sets]
        results[name] = {
            kind: tested(choice, [of_set[choice[0]] for of_set in runs], split.target)
            for kind, choice in chosen.items()
        }
    return {"left_out": clients - count, "clients": clients, "methods": results}


def folds_of(split: Split, about: Mapping[str, Any]) -> list[tuple[Examples, Examples]]:
    """Return two folds: a share of clients at one end of the first direction judges, and one at the other trains."""
    trials = about["trials"]
    order = scores(prepared(split.train, split.target, about["components"])[0]).argsort(kind="stable")
    near, far = round(trials["near"] * len(order)), max(1, round(trials["far"] * len(order)))
    lines = (order, order[::-1])
    return [(split.train.of(np.sort(line[:near])), split.train.of(np.sort(line[-far:]))) for line in lines]


Choice = tuple[Point, float, float]
"""The size and rate of a method, its temperature, and its log-loss on the clients that were held out."""


def choose(
    contender: Contender,
    folds: Sequence[tuple[Setup, Examples]],
    trials: Mapping[str, Any],
    about: Mapping[str, Any],
    device: str,
) -> dict[str, Choice]:
    """Return the best size and rate by kind, without and with a temperature."""
    low, high = trials["grids"][contender.grid]
    sizes = [float(size) for size in np.geomspace(low, high, trials["sizes"])]
    points = [(size, rate) for size in sizes for rate in trials["rates"]]
    runs = [trained(contender, points, at, about, device) for at, _ in folds]
    found: dict[str, list[Choice]] = {kind: [] for kind in KINDS}
    y = np.concatenate([far.y for _, far in folds])
    for point, *of_point in zip(points, *runs, strict=True):
        logits = [logits_of(run, far) for run, (_, far) in zip(of_point, folds, strict=True) if run is not None]
        if len(logits) < len(folds) or not all(np.isfinite(each).all() for each in logits):
            continue
        best = temperature(np.concatenate(logits), y)
        for kind, used in zip(KINDS, (1.0, best), strict=True):
            pairs = zip(folds, logits, strict=True)
            losses = [by_client(far, far.losses(each / used)) for (_, far), each in pairs]
            found[kind].append((point, used, float(np.concatenate(losses).mean())))
    return {kind: min(choices, key=lambda choice: choice[2]) for kind, choices in found.items()}


def tested(choice: Choice, runs: Sequence[wafl.Run | None], target: Examples) -> dict[str, Any]:
    """Return the losses and accuracies of target clients, and the mean losses of the models of the draws.

    A model that diverged guesses.
    """
    (size, rate), used, held_out = choice
    blank = np.zeros((len(target.y), target.classes))
    logits = [blank if run is None else logits_of(run, target) for run in runs]
    first, *draws = (by_client(target, target.losses(each / used)) for each in logits)
    correct = by_client(target, (logits[0].argmax(1) == target.y).astype(float))
    return {
        "size": size,
        "rate": rate,
        "temperature": used,
        "held_out": held_out,
        "diverged": sum(run is None for run in runs),
        "loss": first.round(5).tolist(),
        "accuracy": correct.round(5).tolist(),
        "draws": [round(float(each.mean()), 5) for each in draws],
    }
