"""Several methods on the same clients: train each, test each under attack, keep everything, survive anything."""

from __future__ import annotations

import itertools
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from wafl.core.describe import describe
from wafl.core.files import write_whole
from wafl.core.history import History
from wafl.engine.callbacks import Callback, EarlyStopping, EvaluateEvery
from wafl.engine.checkpoint import Checkpoint
from wafl.engine.fit import train
from wafl.evaluation.score import Score
from wafl.run import Run, saved_history
from wafl.runs.config import Experiment
from wafl.runs.folder import RunFolder
from wafl.runs.metrics import MetricsFile, joined
from wafl.runs.plan import Entry, FindClients, Plan, make_plan
from wafl.runs.trackers import make_trackers

OnRound = Callable[[str, int, int], None]
"""Told the method's name, and how many of how many rounds of all its runs are done."""


@dataclass(frozen=True)
class Study:
    """An experiment and the folder it goes to."""

    folder: RunFolder
    plan: Plan

    @classmethod
    def create(
        cls, experiment: Experiment, path: Path, source: Path | None = None, find_clients: FindClients | None = None
    ) -> Study:
        """A new study; ``source`` is the folder of the experiment's file. All is checked before anything is written."""
        plan = make_plan(experiment, source, find_clients)
        return cls(RunFolder.create(path, experiment, source), plan)

    @classmethod
    def resume(cls, path: Path, find_clients: FindClients | None = None) -> Study:
        """A study that was begun, as its folder describes it."""
        folder = RunFolder.existing(path)
        source = folder.read_about().get("source")
        return cls(folder, make_plan(folder.experiment(), None if source is None else Path(source), find_clients))

    def run(self, on_round: OnRound | None = None, watchers: Sequence[Callback] = ()) -> dict[str, Any]:
        """Train and test what is not done yet; gives what ``results.json`` holds. ``watchers`` are told of every round.

        What a method gave is on disk before the next one starts, and its progress after every round.
        """
        with self.folder.locked():
            results = self.folder.read_results() or self._blank()
            lines = [
                line for entry in self.plan.entries if entry.name in results["done"] for line in self._lines_of(entry)
            ]
            for entry in self.plan.entries:
                if entry.name not in results["done"]:
                    lines += self._train(entry, results, lines, on_round, watchers)
            metrics = joined(lines)
            if not self.folder.metrics.exists() or self.folder.metrics.read_bytes() != metrics:
                write_whole(self.folder.metrics, metrics)
            self.folder.write_results({**results, "finished": True, "metrics": sha256(metrics).hexdigest()})
            shutil.rmtree(self.folder.checkpoint, ignore_errors=True)
        return results

    def _train(
        self,
        entry: Entry,
        results: dict[str, Any],
        lines: Sequence[str],
        on_round: OnRound | None,
        watchers: Sequence[Callback],
    ) -> list[str]:
        """Train and test one method and keep what it gave; its lines in the metrics come behind ``lines``."""
        plan, experiment = self.plan, self.plan.experiment
        grid = {**entry.grid, "seed": experiment.seeds}
        checkpoint = Checkpoint(self.folder.checkpoint / entry.name, every=experiment.checkpoint_every)
        points = _points(grid)
        metrics = MetricsFile(self.folder.metrics, entry.name, points, lines)
        began = time.perf_counter()
        runs = train(
            plan.trainer(),
            entry.specs(experiment.seeds),
            callbacks=[*self._callbacks(entry, on_round, len(points)), *watchers, metrics],
            checkpoint=checkpoint,
        )
        seconds = time.perf_counter() - began
        for point, run in zip(points, runs, strict=True):
            run.save(self._run_folder(entry, point))
        begins = range(0, len(runs), len(experiment.seeds)) if plan.testers.testable else ()
        for begin in begins:  # the seed varies fastest
            together = runs[begin : begin + len(experiment.seeds)]
            folder = self._run_folder(entry, points[begin]).name
            label = entry.method.name if folder == entry.method.name.lower() else folder
            results["methods"][label] = {**self._test(together), "seconds": seconds, "schedule": entry.schedule}
        results["done"].append(entry.name)
        self.folder.write_results(results)
        shutil.rmtree(checkpoint.folder, ignore_errors=True)
        return self._lines_of(entry, [run.history for run in runs])

    def _lines_of(self, entry: Entry, histories: Sequence[History] | None = None) -> list[str]:
        """A method's lines in the metrics, from its saved runs, which are checked, where they are not at hand."""
        points = _points({**entry.grid, "seed": self.plan.experiment.seeds})
        if histories is None:
            histories = [saved_history(self._run_folder(entry, point)) for point in points]
        return MetricsFile(self.folder.metrics, entry.name, points).lines(histories)

    def _run_folder(self, entry: Entry, point: Mapping[str, Any]) -> Path:
        """Where the run of a swept combination is kept: the first seed's model stands for the others."""
        swept = "".join(f"-{key}={point[key]}" for key in entry.grid)
        folder = self.folder.path / (entry.name + swept)
        return folder if point["seed"] == self.plan.experiment.seeds[0] else folder / f"seed-{point['seed']}"

    def _callbacks(self, entry: Entry, on_round: OnRound | None, num_runs: int) -> list[Callback]:
        experiment, found = self.plan.experiment, list[Callback]()
        if experiment.evaluation.every:
            found.append(EvaluateEvery(self.plan.testers, experiment.evaluation.every))
        if experiment.early_stopping is not None:
            found.append(EarlyStopping(**experiment.early_stopping.model_dump()))
        found += make_trackers(experiment.trackers, self.folder.path, entry.name)
        if on_round is not None:
            found.append(_Counter(entry.name, entry.schedule["rounds"] * num_runs, on_round))
        return found

    def _test(self, runs: Sequence[Run]) -> dict[str, Any]:
        """Scores of the seeds, one by one, and their mean and spread: accuracies in percent, or losses."""
        clients, attack, seeds = self.plan.testers, self.plan.attack, self.plan.experiment.seeds
        clean = [clients.evaluate(run) for run in runs]
        attacked = {
            f"{share:g}": [clients.evaluate(run, attack, share, seed) for run, seed in zip(runs, seeds, strict=True)]
            for share in (self.plan.experiment.evaluation.attacked if attack is not None else [])
        }
        worst = [_worst(score) for score in clean]
        return {
            "method": describe(runs[0].settings["method"]),
            "clean": _spread([_measure(score) for score in clean]),
            "attacked": {share: _spread([_measure(score) for score in scores]) for share, scores in attacked.items()},
            "worst_client": _spread(worst),
        }

    def _blank(self) -> dict[str, Any]:
        clients, attack = self.plan.clients.roster, self.plan.attack
        of = "percent of all test examples" if clients.num_classes is not None else "loss over all test examples"
        return {
            "clients": self.plan.who,
            "unit": clients.unit,
            "attack": None if attack is None else attack.describe(clients.unit),
            "seeds": list(self.plan.experiment.seeds),
            "measure": "accuracy" if clients.num_classes is not None else "loss",
            "numbers": f"{of}, mean and standard deviation over the seeds",
            "methods": {},
            "done": [],
            "finished": False,
        }


@dataclass
class _Counter(Callback):
    """Counts rounds for a progress bar; those of before a resume are done already."""

    name: str
    total: int
    on_count: OnRound
    rounds: dict[int, int] | None = None

    def on_round(self, moment: Any) -> None:
        self.rounds = {**(self.rounds or {}), moment.place: moment.record.round + 1}
        self.on_count(self.name, sum(self.rounds.values()), self.total)


def _points(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination, in the order of a sweep."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _measure(score: Score) -> float:
    return score.loss if score.accuracy is None else 100.0 * score.accuracy


def _worst(score: Score) -> float:
    client = score.worst_client
    return client.loss if client.accuracy is None else 100.0 * client.accuracy


def _spread(values: Sequence[float]) -> dict[str, Any]:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "std": deviation, "seeds": list(values)}
