"""Methods on natural clients: seen, unseen, the worst tenth, disturbed and attacked, over several splits.

Every method is tuned once per data set, with the same number of trials, on clients that no split leaves out. What a
method gave on a data set is kept as soon as it is there, and the same command goes on after an interruption. Nothing in
the numbers depends on the time or the machine, so they repeat bit for bit.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
from torch import nn

from wafl import models
from wafl.attacks import PGD
from wafl.core.describe import describe
from wafl.core.errors import TrainingWarning
from wafl.core.files import sealed, unsealed, write_whole
from wafl.data.federation import Federation
from wafl.engine.fit import fit
from wafl.evaluation.compare import compare
from wafl.evaluation.evaluate import evaluate
from wafl.evidence.natural import DATA, NaturalData
from wafl.methods import METHODS, Method
from wafl.run import Run
from wafl.tuning.tune import tune
from wafl.weights.base import asks_everyone

TEN = ("FedAvg", "WAFL", "FedPGM", "FedFGSM", "FedRobust", "AFL", "DRFA", "CVaR", "QFFL", "FedProx")
"""The methods of the table, unless others are named."""
COLUMNS = ("seen", "seen test", "unseen", "worst tenth", "disturbed", "attacked")
Kind = Literal["mlr", "mlp"]
Say = Callable[[str], None]
EPSILON = 0.1
"""Of the attack on images, for pixels in [0, 1]."""


@dataclass(frozen=True)
class Effort:
    """How much is tried and trained.

    Args:
        trials: settings of each method that tuning tries.
        splits: of the clients into seen and unseen.
        rounds: of each run; a method whose clients take single steps gets as many rounds as others take steps.
        local_steps: per round and client.
        batch_size: examples per step.
        model: a linear model, or one hidden layer.
    """

    trials: int = 8
    splits: int = 5
    rounds: int = 40
    local_steps: int = 5
    batch_size: int = 32
    model: Kind = "mlr"


def leaderboard(
    data: Sequence[str], methods: Sequence[str], effort: Effort, work: Path, say: Say = print
) -> dict[str, Any]:
    """Test methods on data sets; what is done already is read from the working folder.

    Args:
        data: names of :data:`wafl.evidence.natural.DATA`.
        methods: names of :data:`wafl.METHODS`.
        effort: how much is tried and trained.
        work: where the results of each method on each data set are kept.
        say: told what is done.

    Returns:
        What the table is made from; data sets that are not here are listed under ``absent``.
    """
    for what, given, known in (("data", data, DATA), ("method", methods, METHODS)):
        for name in given:
            if name not in known:
                raise ValueError(f"unknown {what} {name!r}: use one of {', '.join(known)}")
    absent = {name: missing for name in data if (missing := DATA[name].missing) is not None}
    for name, missing in absent.items():
        say(f"{name}: left out, as {missing} is not here (`wafl data list`)")
    found: dict[str, dict[str, Any]] = {}
    for name in (name for name in data if name not in absent):
        for method in methods:
            say(f"{name}: {method}")
            found.setdefault(name, {})[method] = _kept(DATA[name], method, effort, work)
    about = {name: DATA[name].what for name in found}
    return {"effort": describe(effort), "what": about, "absent": absent, "results": found}


def _kept(data: NaturalData, method: str, effort: Effort, work: Path) -> dict[str, Any]:
    """What a method gave on a data set, from the working folder if it is there."""
    key = sha256(json.dumps([data.name, method, describe(effort)]).encode()).hexdigest()[:12]
    path = work / f"{data.name}-{method}-{key}.json"
    if path.is_file():
        return unsealed(path.read_bytes())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        made = _made(data, method, effort)
    work.mkdir(parents=True, exist_ok=True)
    write_whole(path, sealed(made))
    return made


def _made(data: NaturalData, name: str, effort: Effort) -> dict[str, Any]:
    method, schedule = METHODS[name](), _schedule(METHODS[name](), data, effort)
    tuners = data.tuners()
    tuning = tune(
        build(effort.model, tuners), tuners, {name: (method, schedule)},
        trials=effort.trials, held_out="clients" if tuners.num_clients > 2 else "examples", share=0.34,
    )  # fmt: skip
    best = tuning.best[name]
    rows = [_tested(data, best.method, {**schedule, **best.schedule}, effort, split) for split in range(effort.splits)]
    return {"setting": describe(best.setting), "why": best.why, "splits": rows}


def _schedule(method: Method, data: NaturalData, effort: Effort) -> dict[str, Any]:
    """The same number of local steps for all: AFL's clients take one per round."""
    single = type(method.client_weights).__name__ == "Agnostic"
    rounds, steps = (effort.rounds * effort.local_steps, 1) if single else (effort.rounds, effort.local_steps)
    cohort = None if asks_everyone(method.client_weights) else data.cohort
    common = {"batch_size": effort.batch_size, "learning_rate": 0.1, "cohort": cohort}
    return {"rounds": rounds, "local_steps": steps, **common}


def _tested(
    data: NaturalData, method: Method, schedule: Mapping[str, Any], effort: Effort, split: int
) -> dict[str, float | None]:
    """One row of the table: a model trained on the seen clients of a split."""
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
    found: dict[str, float | None] = {
        "seen": _percent(score.train.accuracy),
        "seen test": _percent(score.accuracy),
        "unseen": _percent(score.unseen.accuracy),
        "worst tenth": _percent(score.unseen.worst_tenth),
        "disturbed": fmean(_percent(row.score.accuracy) for row in disturbed.rows),
        "attacked": _attacked(run, whole) if data.images else None,
    }
    return found


def _attacked(run: Run, clients: Federation) -> float:
    return _percent(evaluate(run, clients, attack=PGD(EPSILON, steps=20)).accuracy)


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
