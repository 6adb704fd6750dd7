"""Choose the size of each method on clients that train alone, by extrapolation, and train with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from research.clients_ball import objectives as of
from research.clients_ball.geometry import root_of, scores
from research.clients_ball.objectives import Array, Examples, Objective
from research.clients_ball.solver import Solution, solve, temperature
from research.clients_ball.tasks import Split, prepared


@dataclass(frozen=True)
class Method:
    """How to build an objective from examples, a size, a root and an inner precision; and its penalty's curvature."""

    build: Callable[[Examples, float, Array, float], Objective]
    metric: Callable[[float, Array], Array | None]
    grid: str
    decay: bool
    """Whether the chosen weight decay is added."""


def _unit(root: Array) -> Array:
    """Return a root that a mean squared entry of features does not scale."""
    return root / np.sqrt(np.trace(root @ root.T) / len(root))


def _round(root: Array) -> Array:
    """Return the root of a round ball in which a left-out client is as far away."""
    return np.eye(len(root)) * np.sqrt(np.trace(root @ root.T) / len(root))


METHODS = {
    "decay": Method(
        lambda data, size, *_: of.decayed(of.cross_entropy(data), size),
        lambda size, root: size * np.eye(len(root)), "decay", False,
    ),
    "decay in the clients' metric": Method(
        lambda data, size, root, _: of.decayed(of.cross_entropy(data), size, _unit(root)),
        lambda size, root: size * _unit(root) @ _unit(root).T, "decay", False,
    ),
    "round ball": Method(
        lambda data, size, root, inner: of.ball_of_order_two(data, size, _round(root), inner),
        lambda size, root: size**2 * _round(root) ** 2, "radius", False,
    ),
    "clients' ball, order 1": Method(
        lambda data, size, root, _: of.ball_of_order_one(data, size, root),
        lambda size, root: size**2 * root @ root.T, "radius", False,
    ),
    "clients' ball, order 2": Method(
        lambda data, size, root, inner: of.ball_of_order_two(data, size, root, inner),
        lambda size, root: size**2 * root @ root.T, "radius", False,
    ),
    "random moves": Method(
        lambda data, size, root, _: of.random_moves(data, size, root),
        lambda size, root: size**2 * root @ root.T / len(root), "noise", False,
    ),
    "GroupDRO": Method(lambda data, size, *_: of.group_dro(data, size), lambda *_: None, "groups", True),
    "IRM": Method(lambda data, size, *_: of.invariant_risk(data, size), lambda *_: None, "groups", True),
}  # fmt: skip
BALL = "clients' ball"
KINDS = ("plain", "scaled")
"""Without and with a temperature."""
ORDERS = (f"{BALL}, order 1", f"{BALL}, order 2")


@dataclass(frozen=True)
class Choice:
    """The size of a method, its temperature and its log-loss on the clients that were held out."""

    size: float
    temperature: float
    loss: float


@dataclass(frozen=True)
class Fold:
    """Clients that train, clients that judge, and the root of those that train."""

    near: Examples
    far: Examples
    root: Array


def folds_of(train: Examples, near: float, far: float) -> list[Fold]:
    """Return two folds: a share of clients at one end of the first direction judges, and one at the other trains."""
    order = scores(train).argsort(kind="stable")
    trained, judged = round(near * len(order)), max(1, round(far * len(order)))
    folds: list[Fold] = []
    for line in (order, order[::-1]):
        some = train.of(np.sort(line[:trained]))
        folds.append(Fold(some, train.of(np.sort(line[-judged:])), root_of(some)))
    return folds


def by_client(examples: Examples, values: Array) -> Array:
    """Return the mean of values over each client's examples."""
    return np.bincount(examples.owner, values) / np.bincount(examples.owner)


def objective_of(
    method: Method, data: Examples, size: float, root: Array, decay: float, precision: float
) -> tuple[Objective, Array]:
    """Return the objective with its decay, and the curvature of its penalties."""
    metric = method.metric(size, root)
    total = decay * np.eye(len(root)) + (0.0 if metric is None else metric)
    return of.decayed(method.build(data, size, root, precision / 100.0), decay), total


def choose(method: Method, folds: Sequence[Fold], decay: float, trials: Mapping[str, Any]) -> dict[str, Choice]:
    """Return the best size by kind, without and with a temperature; the grid grows while an end of it is best."""
    low, high = trials["grids"][method.grid]
    sizes = [float(size) for size in np.geomspace(low, high, trials["sizes"])]
    done: dict[str, dict[float, Choice]] = {kind: {} for kind in KINDS}
    starts: list[Array | None] = [None] * len(folds)
    precision = trials["precision"]["selection"]

    def judge(size: float) -> None:
        logits: list[Array] = []
        for index, fold in enumerate(folds):
            objective, metric = objective_of(method, fold.near, size, fold.root, decay, precision)
            solution = solve(objective, fold.near, metric, starts[index], precision)
            starts[index] = solution.weights
            logits.append(fold.far.logits(solution.weights))
        best = temperature(np.concatenate(logits), np.concatenate([fold.far.y for fold in folds]))
        for kind, used in zip(KINDS, (1.0, best), strict=True):
            pairs = zip(folds, logits, strict=True)
            losses = [by_client(fold.far, fold.far.losses(each / used)) for fold, each in pairs]
            done[kind][size] = Choice(size, used, float(np.concatenate(losses).mean()))

    for size in reversed(sizes):
        judge(size)
    for _ in range(trials["extensions"]):
        bests = {_best(choices).size for choices in done.values()}
        known = sorted(done["plain"])
        beyond = [known[0] * known[0] / known[1]] if known[0] in bests else []
        beyond += [known[-1] * known[-1] / known[-2]] if known[-1] in bests else []
        for size in beyond:
            starts[:] = [None] * len(folds)
            judge(size)
        if not beyond:
            break
    return {kind: _best(choices) for kind, choices in done.items()}


def _best(choices: Mapping[float, Choice]) -> Choice:
    return min(choices.values(), key=lambda choice: choice.loss)


def measure(split: Split, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return, by method and kind, its size and the losses and accuracies of target clients, also after draws."""
    trials, verdict = about["trials"], about["verdict"]
    components = about["components"] if split.pixels else None
    train, _target = prepared(split.train, split.target, components)
    folds = folds_of(train, trials["near"], trials["far"])
    clients, draws = train.clients, np.random.default_rng(0)
    count = round(verdict["share_drawn"] * clients)
    drawn = [np.sort(draws.permutation(clients)[:count]) for _ in range(verdict["draws"])]
    sets = [prepared(some, split.target, components) for some in (split.train, *map(split.train.of, drawn))]
    roots = [root_of(some) for some, _ in sets]
    results: dict[str, dict[str, Any]] = {}
    tuned = 0.0
    for name, method in METHODS.items():
        decay = tuned if method.decay else 0.0 if method.grid == "decay" else trials["floor"]
        chosen = choose(method, folds, decay, trials)
        tuned = chosen["plain"].size if name == "decay" else tuned
        solved: dict[float, list[Solution]] = {}
        for choice in chosen.values():
            if choice.size not in solved:
                solved[choice.size] = _solutions(method, choice.size, decay, sets, roots, trials)
        results[name] = {kind: _tested(choice, solved[choice.size], sets) for kind, choice in chosen.items()}
    results[BALL] = {
        kind: min((results[order][kind] for order in ORDERS), key=lambda result: result["held_out"]) for kind in KINDS
    }
    return {"left_out": clients - count, "clients": clients, "methods": results}


def _solutions(
    method: Method,
    size: float,
    decay: float,
    sets: Sequence[tuple[Examples, Examples]],
    roots: Sequence[Array],
    trials: Mapping[str, Any],
) -> list[Solution]:
    """Return the model of each training set."""
    precision, solutions = trials["precision"]["final"], list[Solution]()
    for (train, _), root in zip(sets, roots, strict=True):
        objective, metric = objective_of(method, train, size, root, decay, precision)
        solutions.append(solve(objective, train, metric, None, precision))
    return solutions


def _tested(choice: Choice, solutions: Sequence[Solution], sets: Sequence[tuple[Examples, Examples]]) -> dict[str, Any]:
    """Return the losses and accuracies of target clients, and the mean losses of the models of the draws."""
    logits = [target.logits(solution.weights) for (_, target), solution in zip(sets, solutions, strict=True)]
    targets = [target for _, target in sets]
    pairs = zip(targets, logits, strict=True)
    first, *draws = (by_client(target, target.losses(each / choice.temperature)) for target, each in pairs)
    correct = by_client(targets[0], (logits[0].argmax(1) == targets[0].y).astype(float))
    return {
        "size": choice.size,
        "temperature": choice.temperature,
        "held_out": choice.loss,
        "precision": max(solution.precision for solution in solutions),
        "loss": first.round(5).tolist(),
        "accuracy": correct.round(5).tolist(),
        "draws": [round(float(each.mean()), 5) for each in draws],
    }
