"""Methods on natural clients: seen, unseen, the worst tenth, disturbed and attacked, over several splits.

Every method is tuned once per data set, with as many trials, on clients that no split leaves out. What is made is kept,
and nothing depends on the time or the machine: the numbers repeat bit for bit.
"""

import itertools
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
from torch import nn

from wafl import models
from wafl.attacks import PGD
from wafl.base.describe import describe
from wafl.base.errors import DivergedError, TrainingWarning
from wafl.base.files import sealed, unsealed, write_whole
from wafl.data.federation import Federation
from wafl.engine.fit import fit
from wafl.evaluation.compare import compare
from wafl.evaluation.evaluate import evaluate
from wafl.lab.leaderboard.tasks import DATA, NaturalData
from wafl.methods import METHODS, Method
from wafl.tuning.candidate import Candidate
from wafl.tuning.result import Best
from wafl.tuning.space import Given, make_space
from wafl.tuning.tune import tune

TEN = ("FedAvg", "WAFL", "FedPGM", "FedFGSM", "FedRobust", "AFL", "DRFA", "CVaR", "QFFL", "FedProx")
"""The methods of the table, unless others are named."""
COLUMNS = ("seen", "seen test", "unseen", "worst tenth", "disturbed", "attacked")
Kind = Literal["mlr", "mlp"]
Say = Callable[[str], None]
VERSION = 2
"""The version of how the numbers are made: what another version kept is not used."""
RATES = [0.1, 0.5, 0.02, 2.5]
"""The learning rates that every method tries."""
EPSILON = 0.1
"""The size of the attack on images, for pixels in [0, 1]."""


@dataclass(frozen=True)
class Effort:
    """How much is tried and trained; a method whose clients take single steps gets as many rounds as others steps."""

    trials: int = 8
    splits: int = 5
    rounds: int = 40
    local_steps: int = 5
    batch_size: int = 32
    model: Kind = "mlr"


def leaderboard(
    data: Sequence[str], methods: Sequence[str], effort: Effort, work: Path, say: Say = print
) -> dict[str, Any]:
    """What the table of these methods on these data sets is made from; ``work`` keeps it, absent data are listed."""
    _check_names(data, methods)
    absent = {name: missing for name in data if (missing := DATA[name].missing) is not None}
    for name, missing in absent.items():
        say(f"{name}: left out, as {missing} is not here (`wafl data list`)")
    results: dict[str, dict[str, Any]] = {}
    for name in (name for name in data if name not in absent):
        for method in methods:
            say(f"{name}: {method}")
            results.setdefault(name, {})[method] = _kept(DATA[name], method, effort, work)
    return _numbers(effort, results, absent, {})


def finished(data: Sequence[str], methods: Sequence[str], effort: Effort, work: Path) -> dict[str, Any]:
    """What the table is made from of all that a working folder has; nothing is trained, and the rest is listed."""
    _check_names(data, methods)
    results, unfinished = dict[str, dict[str, Any]](), dict[str, list[str]]()
    for name, method in itertools.product(data, methods):
        path = _place(DATA[name], method, effort, work)
        if path.is_file():
            results.setdefault(name, {})[method] = unsealed(path.read_bytes())
        else:
            unfinished.setdefault(name, []).append(method)
    return _numbers(effort, results, {}, unfinished)


def _check_names(data: Sequence[str], methods: Sequence[str]) -> None:
    for what, given, known in (("data", data, DATA), ("method", methods, METHODS)):
        for name in given:
            if name not in known:
                raise ValueError(f"unknown {what} {name!r}: use one of {', '.join(known)}")


def _numbers(
    effort: Effort,
    results: Mapping[str, Mapping[str, Any]],
    absent: Mapping[str, str],
    unfinished: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    return {
        "effort": describe(effort),
        "what": {name: DATA[name].what for name in results},
        "absent": absent,
        "unfinished": unfinished,
        "results": results,
    }


def _place(data: NaturalData, method: str, effort: Effort, work: Path) -> Path:
    key = sha256(json.dumps([VERSION, data.name, method, describe(effort)]).encode()).hexdigest()[:12]
    return work / f"{data.name}-{method}-{key}.json"


def _kept(data: NaturalData, method: str, effort: Effort, work: Path) -> dict[str, Any]:
    """What a method gave on a data set, from the working folder if it is there."""
    path = _place(data, method, effort, work)
    if path.is_file():
        return unsealed(path.read_bytes())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        best = _tuned(data, method, effort)
        rows = [_tested(data, best.method, best.schedule, effort, split) for split in range(effort.splits)]
    made = {"setting": describe(best.setting), "why": best.why, "splits": rows}
    work.mkdir(parents=True, exist_ok=True)
    write_whole(path, sealed(made))
    return made


def _tuned(data: NaturalData, name: str, effort: Effort) -> Best:
    """What tuning chose: half of the trials go to the learning rate, and half to the method's own options.

    Few trials over everything at once would judge a method by the rates it happened to get. So all try the same rates,
    with options that do little; a method without options searches its rate once more, around the best.
    """
    tuners, plain = data.tuners(), METHODS[name]()
    space = make_space(Candidate(name, plain, {}), {}, math.prod(tuners.input_shape))
    own = {option: value for option, (_, value) in plain.declared().items() if option in space}
    gentle = plain.with_options(**{option: space[option].gentlest(value) for option, value in own.items()})

    def search(method: Method, schedule: Mapping[str, Any], space: Given) -> Best:
        way = "clients" if tuners.num_clients > 2 else "examples"
        tuning = tune(
            build(effort.model, tuners), tuners, {name: (method, schedule)},
            trials=effort.trials // 2, space=space, held_out=way, share=0.34,
        )  # fmt: skip
        return tuning.best[name]

    schedule = _schedule(plain, data, effort)
    best = search(gentle, schedule, {"learning_rate": RATES[: effort.trials // 2], **{option: [] for option in own}})
    rate = best.schedule["learning_rate"]
    with suppress(DivergedError):
        other = {"learning_rate": [] if own else (rate / 2.0, 2.0 * rate)}
        second = search(plain, {**schedule, "learning_rate": rate}, other)
        best = second if second.value > best.value else best
    options = {option: best.method.declared()[option][1] for option in own}
    return replace(best, setting={**options, "learning_rate": best.schedule["learning_rate"]})


def _schedule(method: Method, data: NaturalData, effort: Effort) -> dict[str, Any]:
    """The schedule of a method, with as many local steps in all as others have: AFL's clients take one per round."""
    single = type(method.client_weights).__name__ == "Agnostic"
    rounds, steps = (effort.rounds * effort.local_steps, 1) if single else (effort.rounds, effort.local_steps)
    cohort = None if method.client_weights.asks_everyone else data.cohort
    common = {"batch_size": effort.batch_size, "learning_rate": 0.1, "cohort": cohort}
    return {"rounds": rounds, "local_steps": steps, **common}


def _tested(
    data: NaturalData, method: Method, schedule: Mapping[str, Any], effort: Effort, split: int
) -> dict[str, float | None]:
    """One row of the table: the accuracies of a model that is trained on the seen clients of a split."""
    seen, unseen = data.split(split)
    options: dict[str, Any] = {**schedule, "seed": split}
    run = fit(build(effort.model, seen), seen, method, **options)
    if run.diverged:
        return dict.fromkeys(COLUMNS)
    score = evaluate(run, seen, unseen=unseen)
    assert score.train is not None
    assert score.unseen is not None
    whole = replace(unseen, test=unseen.train.joined(unseen.test))
    disturbed = compare([run], whole, attacks=list(data.shifts.values()), seed=split)
    attacked = evaluate(run, whole, attack=PGD(EPSILON, steps=20)).accuracy if data.images else None
    return {
        "seen": _percent(score.train.accuracy),
        "seen test": _percent(score.accuracy),
        "unseen": _percent(score.unseen.accuracy),
        "worst tenth": _percent(score.unseen.worst_tenth),
        "disturbed": fmean(_percent(row.score.accuracy) for row in disturbed.rows),
        "attacked": None if attacked is None else _percent(attacked),
    }


def _percent(value: float | None) -> float:
    assert value is not None
    return 100.0 * value


def build(kind: Kind, clients: Federation) -> nn.Module:
    """The model that all methods train: linear, or with one hidden layer of 64 units."""
    if kind == "mlr":
        return models.mlr(clients)
    features = int(torch.tensor(clients.input_shape).prod())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, clients.num_outputs))
