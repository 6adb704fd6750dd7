"""Train several methods on the same clients, test each under attack, and save everything safely."""

import itertools
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Self

from wafl.base.describe import describe
from wafl.base.errors import CheckpointError, DivergedError, FolderError, UnboundedError, UnfitCheckpointError
from wafl.base.extras import require
from wafl.base.files import remove_temporary, write_whole
from wafl.base.norms import norm_name
from wafl.callbacks import Callback, Callbacks, EvaluateEvery, TestedElsewhere, as_callbacks
from wafl.config.experiment import Experiment
from wafl.config.plan import Entry, FindClients, Plan, make_plan
from wafl.config.unseen import make_shift
from wafl.data.federation import Federation
from wafl.evaluation.score import ClientScore, Score, generalization, percent_or_loss, spread
from wafl.results.history import History
from wafl.results.run import Run
from wafl.results.saved import load_run, saved_history
from wafl.studies.attendance import left_out
from wafl.studies.folder import StudyFolder
from wafl.studies.metrics import MetricsFile, joined
from wafl.studies.same_study import fingerprint_of, refuse_changes, warn_of_versions
from wafl.studies.trackers import make_trackers
from wafl.train.checkpoint.checkpoint import Checkpoint
from wafl.train.fit import train
from wafl.train.optimum import check_near
from wafl.weights import by_examples


@dataclass(frozen=True)
class Study:
    """An experiment and the folder of its results."""

    folder: StudyFolder
    plan: Plan

    @classmethod
    def create(
        cls,
        experiment: Experiment,
        path: Path,
        source: Path | None = None,
        find_clients: FindClients | None = None,
        *,
        numbered: bool = False,
    ) -> Self:
        """Create a new study, checked before anything is written; ``source`` contains the modules of its file."""
        if experiment.engine == "flower-sim":
            for module in ("flwr", "ray"):
                require(module, extra="flower", what="engine = 'flower-sim'")
        plan = make_plan(experiment, source, find_clients)
        fingerprint = fingerprint_of(plan)
        return cls(StudyFolder.create(path, plan.experiment, source, fingerprint, numbered=numbered), plan)

    @classmethod
    def resume(cls, path: Path, find_clients: FindClients | None = None, *, trust: bool = False) -> Self:
        """Resume a study from its folder, if its data, model and code are unchanged; ``trust`` lets its code run."""
        folder = StudyFolder.existing(path)
        plan = make_plan(folder.experiment(), folder.source(), find_clients, trust=trust)
        refuse_changes(folder, fingerprint_of(plan))
        return cls(folder, plan)

    def pending(self) -> list[Entry]:
        """Return the unfinished methods, in the order of training."""
        done = self.folder.read_results().get("done", [])
        return [entry for entry in self.plan.entries if entry.name not in done]

    def run(self, callbacks: Callbacks = ()) -> dict[str, Any]:
        """Train and test the unfinished methods; return the content of ``results.json``.

        A method's results are on disk before the next method starts, and its progress after every round. If a run
        diverges, only this run stops; if every run diverges, an error is raised. ``on_start`` is called once per
        trained method.
        """
        listeners = as_callbacks(callbacks)
        if self.pending():
            self.folder.refuse_older()
            warn_of_versions(self.folder)
        with self.folder.locked():
            results = self.folder.read_results() or self.blank()
            lines = {entry.name: self.lines_of(entry) for entry in self.plan.entries if entry.name in results["done"]}
            for entry in self.pending():
                lines[entry.name] = self._train(entry, results, self._in_order(lines), listeners)
            metrics = joined(self._in_order(lines))
            if not self.folder.metrics.exists() or self.folder.metrics.read_bytes() != metrics:
                write_whole(self.folder.metrics, metrics)
            results = self.write_results({**results, "finished": True, "metrics": sha256(metrics).hexdigest()})
            remove_temporary(self.folder.path)
            if not self.plan.extensible:
                shutil.rmtree(self.folder.checkpoint, ignore_errors=True)
        reasons = diverged(results)
        if len(reasons) == sum(len(self.points(entry)) for entry in self.plan.entries):
            raise DivergedError(f"every run diverged; {reasons[0]}")
        return results

    def _train(
        self, entry: Entry, results: dict[str, Any], lines: list[str], callbacks: Sequence[Callback]
    ) -> list[str]:
        """Train and test a method, or only test the runs of a repair; return its lines, which follow ``lines``."""
        checkpoint = self.checkpoint(entry)
        runs = None if checkpoint.folder.exists() else self._saved_runs(entry)
        if runs is None:
            runs = self._trained(entry, checkpoint, lines, callbacks)
            for point, run in zip(self.points(entry), runs, strict=True):
                run.save(self.run_folder(entry, point))
        results["methods"] |= self.rows_of(entry, runs)
        results["done"].append(entry.name)
        self.write_results(results)
        if self.plan.extensible:
            checkpoint.keep_last()
        else:
            shutil.rmtree(checkpoint.folder, ignore_errors=True)
        return self.lines_of(entry, [run.history for run in runs])

    def _saved_runs(self, entry: Entry) -> list[Run] | None:
        """Return all runs of a method; None if one is missing, damaged or has too few rounds."""
        try:
            runs = [load_run(self.run_folder(entry, point), model=self.plan.model) for point in self.points(entry)]
        except (OSError, ValueError):
            return None
        return runs if [run.settings["schedule"] for run in runs] == self.schedules(entry) else None

    def schedules(self, entry: Entry) -> list[dict[str, Any]]:
        """Return the schedules of a method's runs, in the form of saved runs."""
        return [describe(spec.schedule) for spec in entry.specs(self.plan.experiment.seeds)]

    def _trained(
        self, entry: Entry, checkpoint: Checkpoint, lines: list[str], listeners: Sequence[Callback]
    ) -> Sequence[Run]:
        experiment, points = self.plan.experiment, self.points(entry)
        metrics, ended = MetricsFile(self.folder.metrics, entry.name, points, lines), _Ended()
        trackers = make_trackers(experiment.trackers, self.folder.path, entry.name)
        callbacks = [*make_callbacks(experiment, self.plan.testers), *listeners, *trackers, metrics, ended]
        trainer, specs = self.plan.trainer(), entry.specs(experiment.seeds)
        try:
            runs = train(trainer, specs, callbacks=callbacks, checkpoint=checkpoint)
            check_near(trainer, specs, runs, experiment.evaluation.check_optimum)
            return runs
        except UnfitCheckpointError:
            raise
        except CheckpointError as error:
            raise CheckpointError(f"{error}, or let wafl repair {self.folder.path} do it") from error
        except (DivergedError, UnboundedError):  # all of them
            return [ended.runs[index] for index in range(len(points))]

    def checkpoint(self, entry: Entry) -> Checkpoint:
        """Return the checkpoint with the progress of a method."""
        every, seconds = self.plan.experiment.checkpoint_every, self.plan.experiment.checkpoint_seconds
        return Checkpoint(self.folder.checkpoint / entry.name, every=every, seconds=seconds)

    def rows_of(self, entry: Entry, runs: Sequence[Run]) -> dict[str, Any]:
        """Test the runs of a method; return one row per swept combination, by its name."""
        seeds, rows = len(self.plan.experiment.seeds), dict[str, Any]()
        for index, label in enumerate(self.labels(entry)):
            group = runs[index * seeds : (index + 1) * seeds]  # the seed varies fastest
            row = self._row(group)
            if "clean" in row:
                row |= {"seconds": sum(sum(run.history.column("seconds")) for run in group), "schedule": entry.schedule}
            if row:
                rows[label] = row
        return rows

    def labels(self, entry: Entry) -> list[str]:
        """Return the names of a method's rows, one per swept combination."""
        firsts = self.points(entry)[:: len(self.plan.experiment.seeds)]
        folders = [self.run_folder(entry, point).name for point in firsts]
        return [entry.method.name if folder == entry.method.name.lower() else folder for folder in folders]

    def write_results(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """Write the results in the order of the experiment, independent of the order of training."""
        rows, done = results["methods"], results["done"]
        labels = [label for entry in self.plan.entries for label in self.labels(entry)]
        ordered = {
            **results,
            "methods": {label: rows[label] for label in dict.fromkeys((*labels, *rows)) if label in rows},
            "done": [entry.name for entry in self.plan.entries if entry.name in done],
        }
        self.folder.write_results(ordered)
        return ordered

    def _in_order(self, lines: Mapping[str, Sequence[str]]) -> list[str]:
        return [line for entry in self.plan.entries for line in lines.get(entry.name, ())]

    def points(self, entry: Entry) -> list[dict[str, Any]]:
        """Return every swept combination, in the order of the sweep."""
        grid = {**entry.grid, "seed": self.plan.experiment.seeds}
        return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]

    def lines_of(self, entry: Entry, histories: Sequence[History] | None = None) -> list[str]:
        """Return a method's lines in the metrics; without histories, from its saved runs, which are checked."""
        points = self.points(entry)
        if histories is None:
            try:
                histories = [saved_history(self.run_folder(entry, point)) for point in points]
            except ValueError as error:
                raise FolderError(
                    f"{error}. wafl repair {self.folder.path} keeps what is sound; the method is then trained again"
                ) from error
        return MetricsFile(self.folder.metrics, entry.name, points).lines(histories)

    def run_folder(self, entry: Entry, point: Mapping[str, Any]) -> Path:
        """Return the folder of a swept combination's run; the first seed's run is in the method's folder."""
        swept = "".join(f"-{key}={point[key]}" for key in entry.grid)
        folder = self.folder.path / (entry.name + swept)
        return folder if point["seed"] == self.plan.experiment.seeds[0] else folder / f"seed-{point['seed']}"

    def _row(self, runs: Sequence[Run]) -> dict[str, Any]:
        """Return the result of all seeds: the scores, and the reasons why some runs diverged."""
        by_seed = dict(zip(self.plan.experiment.seeds, runs, strict=True))
        reasons = {str(seed): run.diverged for seed, run in by_seed.items() if run.diverged}
        tested = {seed: run for seed, run in by_seed.items() if not run.diverged and self.plan.testers.testable}
        row: dict[str, Any] = {"seeds": list(tested), **self._test(tested)} if tested else {}
        absent = left_out(runs, self.plan.clients.roster.names)
        row |= {"left_out": absent} if absent else {}
        chosen = {str(seed): run.settings["chosen"] for seed, run in by_seed.items() if "chosen" in run.settings}
        row |= {"chosen": chosen} if chosen else {}
        if (privacy := self.plan.experiment.privacy) is not None:
            row["privacy"] = privacy.spent(runs, runs[0].settings["schedule"]["rounds"])
        return {**row, "diverged": reasons} if reasons else row

    def _test(self, runs: Mapping[int, Run]) -> dict[str, Any]:
        """Return scores by seed, and their mean and spread: accuracies in percent, or losses."""
        clients, attack = self.plan.testers, self.plan.attack
        clean = [clients.evaluate_parts(run) for run in runs.values()]
        three = generalization(clean)
        attacked = {
            f"{share:g}": [clients.evaluate(run, attack, share, seed) for seed, run in runs.items()]
            for share in (self.plan.experiment.evaluation.attacked if attack is not None else [])
        }

        def shown(scores: Sequence[Score | ClientScore]) -> dict[str, Any]:
            return spread([percent_or_loss(score) for score in scores])

        return {
            "method": describe(next(iter(runs.values())).settings["method"]),
            "clean": shown(clean),
            "attacked": {share: shown(scores) for share, scores in attacked.items()},
            **self._certified(runs),
            "worst_client": shown([score.worst_client for score in clean]),
            **({} if three is None else {"generalization": three}),
            **self._untested(clean),
        }

    def _certified(self, runs: Mapping[int, Run]) -> dict[str, Any]:
        """Certify the runs in the experiment's ball; `unproven` explains why the values are only estimates."""
        evaluation, clients = self.plan.experiment.evaluation, self.plan.federation
        if evaluation.certified is None or clients is None:
            return {}
        from wafl.theory.certificates.certify import certify  # only here, so that no other study waits for it

        asked = {"radii": [evaluation.certified], "norm": evaluation.certified_norm, "client_weights": by_examples()}
        bound = partial(certify, split="test", achieved=False, progress=False, **asked)
        metric: Literal["loss", "error"] = "loss" if clients.num_classes is None else "error"
        certificates = [bound(run, clients, metric=metric) for run in runs.values()]
        worst = [each.best_proven(each[0]) for each in certificates]
        values = worst if metric == "loss" else [100.0 * (1.0 - error) for error in worst]
        unproven = [each.reason for each in certificates if each.caveat is not None]
        return {"estimate": spread(values), "unproven": unproven[0]} if unproven else {"certified": spread(values)}

    def _untested(self, scores: Sequence[Score]) -> dict[str, list[str]]:
        """Return clients elsewhere that were missing in a test, because of a missing node or missing test examples."""
        if self.plan.federation is not None:
            return {}
        tested = set[str].intersection(*({client.name for client in score.per_client} for score in scores))
        missing = [name for name in self.plan.clients.roster.names if name not in tested]
        return {"untested": missing} if missing else {}

    def blank(self) -> dict[str, Any]:
        """Return the content of ``results.json`` before any method is done."""
        clients, attack, experiment = self.plan.clients.roster, self.plan.attack, self.plan.experiment
        of = "percent of all test examples" if clients.num_classes is not None else "loss over all test examples"
        shift, evaluation = make_shift(experiment.data, clients.bounds), experiment.evaluation
        tests: dict[str, Any] = {} if shift is None else {"shift": shift.describe(clients.unit)}
        if evaluation.certified is not None:
            tests |= {"radius": evaluation.certified, "norm": norm_name(evaluation.certified_norm)}
        return {
            "clients": self.plan.who,
            "unit": clients.unit,
            "attack": None if attack is None else attack.describe(clients.unit),
            **tests,
            "seeds": list(experiment.seeds),
            "measure": "accuracy" if clients.num_classes is not None else "loss",
            "numbers": f"{of}, mean and standard deviation over the seeds",
            "methods": {},
            "done": [],
            "finished": False,
        }


def make_callbacks(experiment: Experiment, testers: Federation | TestedElsewhere) -> list[Callback]:
    """Return the callbacks of an experiment: tests while training, and early stopping."""
    every, stopping = experiment.evaluation.every, experiment.early_stopping
    tests = [EvaluateEvery(testers, every)] if every else []
    return [*tests, *([] if stopping is None else [stopping])]


def diverged(results: Mapping[str, Any]) -> list[str]:
    """Return one line per run that diverged, with the reason."""
    return [
        f"{label}, seed {seed}: {reason}"
        for label, row in results.get("methods", {}).items()
        for seed, reason in row.get("diverged", {}).items()
    ]


class _Ended(Callback):
    """A callback that keeps the finished runs, since training returns none if all diverge."""

    def __init__(self) -> None:
        self.runs: dict[int, Run] = {}

    def on_end(self, index: int, run: Run) -> None:
        self.runs[index] = run
