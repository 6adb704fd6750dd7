"""The data sets of the leaderboard: who is tuned on, who trains and who is unseen, as the registration says."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch.nn.functional import avg_pool2d

from research.promises.tasks import Task
from wafl.attacks import PGD, Attack
from wafl.base.random import Purpose, choose
from wafl.data.federation import Federation
from wafl.data.named.datasets import Dataset
from wafl.shifts import affine, gaussian_noise, rotation

Split = tuple[Federation, Federation]
"""The clients that train, and the tested clients that never train."""


class NaturalTask(Task):
    """A task whose clients are people or places, or represent them; ``seed`` draws the clients for tuning."""

    def clients(self, number: int = 0) -> Federation:
        """Return all clients; turned digits get new clients for each number."""
        if "turns" not in self.about:
            return self._everyone
        turns = [rotation(severity=angle / 90.0) for angle in self.about["turns"]]
        return self.dataset().partition(4 * len(turns), iid=True, skew=turns, preprocess="unit", seed=number)

    @cached_property
    def _everyone(self) -> Federation:
        return super().clients()

    def dataset(self) -> Dataset:
        """Return all examples; with ``pool``, each pixel is the mean of a square of this side."""
        whole, pool = super().dataset(), self.about.get("pool", 1)
        parts = whole.x_train, whole.x_test
        small = [avg_pool2d(x.float(), pool).round().to(x.dtype) if pool > 1 else x for x in parts]
        return replace(whole, x_train=small[0], x_test=small[1])

    def split(self, number: int) -> Split:
        """Return the clients that train, including those for tuning, and some of the others, which are unseen."""
        everyone = self.clients(number)
        if "unseen" in self.about:
            return everyone.set_apart([everyone.names.index(name) for name in self.about["unseen"]])
        count, pool = max(2, round(self.about["share_unseen"] * everyone.num_clients)), self._pool()
        return everyone.set_apart([pool[index] for index in choose(number, Purpose.UNSEEN, len(pool), count)])

    @cached_property
    def tuning(self) -> list[Split]:
        """The clients that train and the clients that judge, in each fold of the clients for tuning."""
        fixed = "unseen" in self.about
        tuners = self.split(self.seed)[0] if fixed else self.clients().set_apart(self._pool())[0]
        folds = min(self.about["folds"], tuners.num_clients)
        return [tuners.set_apart(range(first, tuners.num_clients, folds)) for first in range(folds)]

    def _pool(self) -> list[int]:
        """Return the clients that are never used for tuning."""
        total = self.clients().num_clients
        tuners = choose(self.seed, Purpose.UNSEEN, total, max(3, round(self.about["share_tuned"] * total)))
        return [client for client in range(total) if client not in tuners]

    @cached_property
    def images(self) -> bool:
        """Whether the examples are images."""
        return self.dataset().max_value is not None

    def shifts(self) -> list[Attack]:
        """Return the declared shifts of the second track, for images or for measurements."""
        size = self.about["shift"]
        if self.images:
            return [PGD(size["epsilon"], steps=size["steps"])]
        still: dict[str, Any] = {"severity": 1.0, "contrast": 0.0}
        return [
            gaussian_noise(severity=size["noise"]),
            affine(**still, brightness=size["offset"], linear=0.0),
            affine(**still, brightness=0.0, linear=size["mixing"]),
        ]


def tasks_of(table: Mapping[str, Any]) -> dict[str, NaturalTask]:
    """Return the tasks of the registration, by name."""
    common, seed = table["common"], table["seed_tuning"]
    return {name: NaturalTask(name, common | settings, seed) for name, settings in table["tasks"].items()}
