"""The rows of the leaderboard: methods, and references that are none; each has settings to try, and gives models."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from research.leaderboard.references import ALONE, REFERENCES, fitted
from research.leaderboard.scores import Model
from research.leaderboard.tasks import NaturalTask
from research.old_cost_matrix import old_cost_matrix
from wafl import models
from wafl.base.errors import DivergedError, UnboundedError
from wafl.data.examples import Examples
from wafl.data.federation import Federation
from wafl.methods import METHODS
from wafl.train.embedded import Embedded, find_device
from wafl.train.fit import train
from wafl.train.loop import Trainer
from wafl.tuning.space import Candidate, Setting, Space, draw_settings, make_space

OURS = ("method", "declared", "pooled", "measurements", "needs")
"""The keys of a row in the registration that are not options of its method, or values to try."""


@dataclass(frozen=True)
class Row:
    """A row of the registration: here a reference, whose settings are all combinations of the listed values."""

    name: str
    about: Mapping[str, Any]
    trials: Mapping[str, Any]

    @property
    def listed(self) -> dict[str, Any]:
        """The listed options."""
        return {key: value for key, value in self.about.items() if key not in OURS}

    def fits(self, task: NaturalTask) -> bool:
        """Return whether a task has the row: some need measurements, or more clients than train in a fold."""
        fewest = min(seen.num_clients for seen, _ in task.tuning)
        return not (task.images and "measurements" in self.about) and fewest >= self.about.get("needs", 1)

    def first(self, task: NaturalTask, rates: Sequence[float]) -> list[Setting]:
        """Return the settings to try first."""
        return [dict(zip(self.listed, values, strict=True)) for values in itertools.product(*self.listed.values())]

    def second(self, task: NaturalTask, best: Setting) -> list[Setting]:
        """Return the settings to try next, given the best of the first."""
        return []

    def fit(
        self, task: NaturalTask, seen: Federation, tested: Federation, settings: Sequence[Setting], seed: int
    ) -> Sequence[Model | None]:
        """Return a model for each setting, trained on the seen clients; None if its training diverged."""
        alone = self.name == ALONE
        return [Model(fitted(self.name, seen, tested, setting), alone=alone) for setting in settings]


class MethodRow(Row):
    """A method: first learning rates are tried, with its options at their weakest effect; then those options."""

    def first(self, task: NaturalTask, rates: Sequence[float]) -> list[Setting]:
        """Return the learning rates to try first, with the gentlest options."""
        searched = {**self.trials["everyone"], **self.trials["without_options"]}
        gentle = {name: value for name, value in self._space(task)[1].items() if name not in searched}
        return [{**gentle, "learning_rate": rate} for rate in rates]

    def second(self, task: NaturalTask, best: Setting) -> list[Setting]:
        """Return settings of the method's options at the best learning rate."""
        space, options = self._space(task)
        candidate, count = self._candidate(task, task.tuning[0][0]), self.trials["settings"] + 1
        drawn = draw_settings(space, options, count, task.seed, lambda setting: candidate.spec(setting, 0))
        return [{**setting, "learning_rate": best["learning_rate"]} for setting in drawn[1:]]

    def fit(
        self, task: NaturalTask, seen: Federation, tested: Federation, settings: Sequence[Setting], seed: int
    ) -> Sequence[Model | None]:
        """Return a model for each setting, trained as lanes of one batched run."""
        candidate = self._candidate(task, seen)
        if "pooled" in self.about:
            seen = replace(seen, train=_merged(seen.train), test=_merged(seen.test), names=("everyone",))
        trainer = Trainer(models.mlr(seen), Embedded(seen, find_device("cpu"), None), "cross_entropy", None)
        try:
            specs = [candidate.spec(setting, seed) for setting in settings]
            if specs and specs[0].asks_cost_matrix:  # in the unit of the registration
                specs = [spec.with_cost_matrix(old_cost_matrix(seen)) for spec in specs]
            runs = train(trainer, specs)
        except (DivergedError, UnboundedError):  # all of them
            return [None] * len(settings)
        return [None if run.diverged else Model.of(run) for run in runs]

    def _space(self, task: NaturalTask) -> tuple[Space, Setting]:
        """Return the search space besides the rate, and its setting with the weakest effect."""
        clients = task.tuning[0][0]
        candidate, features = self._candidate(task, clients), math.prod(clients.input_shape)
        searched = make_space(candidate, {"learning_rate": []}, features)
        given = self.trials["everyone"] | ({} if searched else self.trials["without_options"])
        space, options = make_space(candidate, {**given, "learning_rate": []}, features), candidate.options()
        return space, {name: space[name].gentlest(options[name][1]) for name in space}

    def _candidate(self, task: NaturalTask, clients: Federation) -> Candidate:
        """Return the method with its schedule on these clients, with the same total number of steps."""
        declared = {"shifts": task.shifts()} if "declared" in self.about else {}
        method, about = METHODS[self.about.get("method", self.name)](**self.listed, **declared), task.about
        schedule = {name: about[name] for name in ("rounds", "local_steps", "batch_size", "average_last")}
        cohort, single = about.get("cohort", clients.num_clients), {"rounds": about["rounds"] * about["local_steps"]}
        if "pooled" in self.about:
            schedule |= {**single, "local_steps": 1, "batch_size": about["batch_size"] * cohort}
        elif method.client_weights.takes_one_step:
            rounds = round(single["rounds"] * cohort / clients.num_clients)
            schedule |= {"rounds": rounds, "local_steps": 1}
        elif cohort < clients.num_clients:
            schedule["cohort"] = cohort
        return Candidate(self.name, method, schedule)


def _merged(examples: Examples) -> Examples:
    return replace(examples, offsets=examples.offsets[[0, -1]])


def row_of(name: str, about: Mapping[str, Any], trials: Mapping[str, Any]) -> Row:
    """Return a row of the registration."""
    return (Row if name in REFERENCES else MethodRow)(name, about, trials)
