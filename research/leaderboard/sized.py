"""The rows of the second leaderboard: methods with one size, of which 0 is plain FedAvg."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from research.leaderboard.tasks import NaturalTask
from wafl import models
from wafl.base.describe import rounded
from wafl.base.errors import DivergedError, UnboundedError
from wafl.data.federation import Federation
from wafl.methods import METHODS, Method
from wafl.parts.schedule import make_schedule
from wafl.results.run import Run
from wafl.train.embedded import Embedded, find_device
from wafl.train.fit import train
from wafl.train.loop import Trainer
from wafl.train.spec import Spec

UNSEARCHED = 1.0
"""The size of a method that has none to search."""


@dataclass(frozen=True)
class Sized:
    """A row of the registration: a method, its size and the unit of the size.

    A size is in the option's own unit, in the ``spread`` of the training clients (the root mean square distance of a
    client's examples from their mean), or in the unit of the ``clients``' cost matrix, which such a row uses.
    """

    name: str
    about: Mapping[str, Any]
    trials: Mapping[str, Any]

    @cached_property
    def sizes(self) -> list[float]:
        """The sizes to try: 0, and then each twice the one before."""
        if "size" not in self.about:
            return [UNSEARCHED]
        first, count = self.about["from"], self.trials["sizes"]
        return [0.0, *(rounded(first * 2.0**index, 6) for index in range(count - 1))]

    def fit(
        self, task: NaturalTask, seen: Federation, settings: Sequence[tuple[float, float]], seed: int
    ) -> list[Run | None]:
        """Return a run for each ``(size, learning rate)``, trained as lanes of one batched run; None if it diverged."""
        clients, about = Embedded(seen, find_device("cpu"), None), task.about
        trainer = Trainer(models.mlr(seen), clients, "cross_entropy", None)
        unit = clients.spread() if self.about.get("unit") == "spread" else 1.0
        schedule = {name: about[name] for name in ("rounds", "local_steps", "batch_size", "average_last")}
        if about.get("cohort", seen.num_clients) < seen.num_clients:
            schedule["cohort"] = about["cohort"]
        matrix = None
        if self.about.get("unit") == "clients" and any(size for size, _ in settings):
            try:
                matrix = clients.cost_matrix_of_clients(trainer.task, trainer.start, None)
            except ValueError:  # the clients do not differ, as far as their examples show: every size is FedAvg
                settings = [(0.0, rate) for _, rate in settings]
        specs: list[Spec] = []
        for size, rate in settings:
            method, decay = self._method(size * unit, matrix)
            specs.append(Spec(method, make_schedule({**schedule, **decay, "learning_rate": rate, "seed": seed})))
        try:
            runs = train(trainer, specs)
        except (DivergedError, UnboundedError):  # all of them
            return [None] * len(settings)
        return [None if run.diverged else run for run in runs]

    def _method(self, size: float, matrix: Any) -> tuple[Method, dict[str, float]]:
        """Return the method of this size, and the weight decay if that is the size."""
        name, option = self.about.get("method", self.name), self.about.get("size")
        if size == 0.0:
            return METHODS["FedAvg"](), {}
        if option == "weight_decay":
            return METHODS[name](), {option: size}
        given = {**self.about.get("options", {}), **({} if option is None else {option: size})}
        return METHODS[name](**given, **({} if matrix is None else {"cost_matrix": matrix})), {}
