"""Several methods on the same clients: train each, test each under attack, keep everything."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from wafl import methods
from wafl.attacks import Attack
from wafl.describe import describe
from wafl.engine.fit import sweep
from wafl.evaluate import Score, evaluate
from wafl.federation import Federation
from wafl.methods import Method
from wafl.run import Run, write_whole
from wafl.weights import Learned

SHARES = (0.2, 0.4, 0.6, 0.8)
"""The paper's shares of attacked clients."""


@dataclass(frozen=True)
class Entry:
    """A method and the schedule it trains by, without the seed."""

    method: Method
    schedule: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """A method's scores, one a seed, and what they took."""

    entry: Entry
    runs: list[Run] = field(repr=False)
    clean: list[Score]
    attacked: dict[float, list[Score]]
    seconds: float

    @property
    def name(self) -> str:
        return self.entry.method.name

    def summary(self) -> dict[str, Any]:
        """Accuracies in percent, mean and standard deviation over the seeds."""
        worst = [score.worst_client.accuracy for score in self.clean]
        return {
            "method": describe(self.entry.method),
            "schedule": self.entry.schedule,
            "clean": _spread([score.accuracy for score in self.clean]),
            "attacked": {
                f"{share:g}": _spread([s.accuracy for s in scores]) for share, scores in self.attacked.items()
            },
            "worst_client": _spread(worst),
            "seconds": self.seconds,
        }


def run_study(
    model: nn.Module,
    clients: Federation,
    entries: Sequence[Entry],
    attack: Attack,
    *,
    seeds: Sequence[int],
    folder: Path,
    device: str = "cpu",
    on_round: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Train every entry with every seed; what a finished method gave is on disk before the next one starts.

    Writes ``<folder>/<method>/`` (the first seed's run) and ``<folder>/results.json``. ``on_round`` is told the
    entry's place and how many rounds of all its seeds are done.
    """
    outcomes: list[Outcome] = []
    for place, entry in enumerate(entries):
        done = 0

        def advance(*_: Any, place: int = place) -> None:
            nonlocal done
            done += 1
            if on_round is not None:
                on_round(place, done)

        began = time.perf_counter()
        grid = {"seed": list(seeds)}
        runs = sweep(model, clients, entry.method, grid, device=device, on_round=advance, **entry.schedule)
        seconds = time.perf_counter() - began
        clean = [evaluate(run, clients) for run in runs]
        attacked = {
            share: [
                evaluate(run, clients, attack=attack, attacked=share, seed=seed)
                for run, seed in zip(runs, seeds, strict=True)
            ]
            for share in SHARES
        }
        outcomes.append(Outcome(entry, runs, clean, attacked, seconds))
        runs[0].save(folder / entry.method.name.lower())
        results = {
            "clients": repr(clients),
            "unit": clients.unit,
            "attack": attack.describe(clients.unit),
            "seeds": list(seeds),
            "accuracy": "percent of all test examples, mean and standard deviation over the seeds",
            "methods": {outcome.name: outcome.summary() for outcome in outcomes},
        }
        write_whole(folder / "results.json", json.dumps(results, indent=1).encode())
    return outcomes


def demo_entries(*, rounds: int = 100, cohort: int = 10, **changes: Any) -> list[Entry]:
    """WAFL and its six rivals with the hyperparameters that ``benchmarks/tune_demo.py`` chose for the digits.

    The attack moves every pixel alike, so WAFL's ball is measured in the same norm.
    """
    chosen = {
        methods.WAFL(gamma=40.0, norm=math.inf): 0.3,
        methods.FedAvg(): 0.1,
        methods.FedPGM(epsilon=0.05): 0.3,
        methods.FedFGSM(epsilon=0.05): 0.3,
        methods.FedRobust(penalty=30.0): 0.1,
        methods.AFL(weights_step=0.001): 0.1,
        methods.DRFA(weights_step=0.1): 0.1,
    }
    return [
        make_entry(method, rounds=rounds, cohort=cohort, learning_rate=rate, **changes)
        for method, rate in chosen.items()
    ]


def make_entry(
    method: Method,
    *,
    rounds: int,
    cohort: int | None,
    local_epochs: int = 2,
    batch_size: int = 64,
    learning_rate: float,
) -> Entry:
    """The common schedule; AFL, whose clients all take one step, gets as many rounds as the others take steps."""
    schedule: dict[str, Any] = {"rounds": rounds, "batch_size": batch_size, "learning_rate": learning_rate}
    if isinstance(method.client_weights, Learned) and method.client_weights.rule == "agnostic":
        return Entry(method, {**schedule, "rounds": 2 * local_epochs * rounds, "local_steps": 1})
    return Entry(method, {**schedule, "cohort": cohort, "local_epochs": local_epochs})


def with_method(entries: Sequence[Entry], name: str) -> Entry:
    """The entry of a method, by its name in any case."""
    for entry in entries:
        if entry.method.name.lower() == name.lower():
            return entry
    known = ", ".join(entry.method.name.lower() for entry in entries)
    raise ValueError(f"unknown method {name!r}: use one of {known}")


def with_options(entry: Entry, **options: Any) -> Entry:
    """The same entry with options of its method changed."""
    return replace(entry, method=entry.method.with_options(**options)) if options else entry


def _spread(values: Sequence[float | None]) -> dict[str, float]:
    percent = [100.0 * value for value in values if value is not None]
    return {"mean": statistics.fmean(percent), "std": statistics.stdev(percent) if len(percent) > 1 else 0.0}
