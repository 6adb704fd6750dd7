"""What trials train on, and what they are judged by: accuracy or loss on training data that were held out."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from wafl.attacks import Attack
from wafl.base.random import Purpose
from wafl.data.examples import Examples
from wafl.data.federation import Federation
from wafl.data.splits import split_rows
from wafl.evaluation.compare import compare
from wafl.evaluation.evaluate import check_attack, check_share
from wafl.results.run import Run

Way = Literal["examples", "clients"]
BLOCK = 256
"""How many clients are split together."""


@dataclass(frozen=True)
class HeldOut:
    """Training examples in two parts: trials train on ``train``; the test examples of ``judges`` were held out."""

    train: Federation
    judges: Federation
    num_clients: int
    words: str


def hold_out(clients: Federation, way: Way, share: float, seed: int) -> HeldOut:
    """Hold out a share of every client's training examples, or of the clients."""
    if not 0.0 < share < 1.0:
        raise ValueError(f"share={share} must lie between 0 and 1: 0.2 holds a fifth out")
    untested = replace(clients, test=clients.train.picked([torch.arange(0)] * clients.num_clients))
    if way == "examples":
        return _hold_out_examples(untested, share, seed)
    if way == "clients":
        seen, unseen = untested.hold_out(share, seed=seed)
        judges = replace(unseen, test=unseen.train)
        words = f"{len(judges.test.y)} training examples of {judges.num_clients} held-out clients"
        return HeldOut(replace(seen, recipe=None), judges, clients.num_clients, words)
    raise ValueError(f"held_out={way!r} must be 'examples' or 'clients'")


def _hold_out_examples(clients: Federation, share: float, seed: int) -> HeldOut:
    kept, held = map(clients.train.picked, zip(*_split(clients.train, share, seed), strict=True))
    if len(held.y) == 0:
        raise ValueError(
            f"share={share} of the training examples is not one example of any client: raise it, or hold out clients"
        )
    train = replace(clients, train=kept, recipe=None)
    words = f"{len(held.y)} held-out training examples"
    return HeldOut(train, replace(train, test=held), clients.num_clients, words)


def _split(examples: Examples, share: float, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows that each client keeps, and those that it holds out."""
    for first in range(0, examples.num_clients, BLOCK):
        sizes, begins = (values[first : first + BLOCK] for values in (examples.num_examples, examples.offsets[:-1]))
        for begin, (kept, held) in zip(begins, split_rows(first, sizes, share, seed, Purpose.HELD_OUT), strict=True):
            yield begin + kept, begin + held


Metric = Literal["accuracy", "loss"]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Goal:
    """What trials are judged by: the mean of a metric over shares of attacked clients, of which 0 is clean data."""

    held_out: HeldOut
    metric: Metric | None = None
    attack: Attack | None = None
    attacked: Sequence[float] = (0.0, 1.0)
    seed: int = 0
    device: torch.device = CPU

    def __post_init__(self) -> None:
        if self.metric not in (None, "accuracy", "loss"):
            raise ValueError(f"metric={self.metric!r} must be 'accuracy' or 'loss'")
        if self.metric == "accuracy" and self.held_out.judges.num_classes is None:
            raise ValueError("metric='accuracy' needs classes, and this is a regression: use metric='loss'")
        if not self.attacked:
            raise ValueError("attacked=() holds no share: give at least one, such as 0 for clean data")
        for share in self.attacked:
            check_share(share)
        object.__setattr__(self, "attack", check_attack(self.attack, self.held_out.judges))

    @property
    def accuracy(self) -> bool:
        """Whether the metric is the accuracy, so that larger is better."""
        return self.metric == "accuracy" or (self.metric is None and self.held_out.judges.num_classes is not None)

    def value(self, run: Run) -> float:
        """The metric of a trained model: the mean over the shares."""
        table = compare(
            {"trial": run.to(self.device)},
            self.held_out.judges,
            attacks=self.attack,
            attacked=self.attacked,
            seed=self.seed,
        )
        scores = [row.score for row in table.rows]
        return statistics.fmean((score.accuracy or 0.0) if self.accuracy else score.loss for score in scores)

    def words(self) -> str:
        """The goal in words: what the numbers are."""
        text = f"{'accuracy' if self.accuracy else 'loss'} on {self.held_out.words}"
        if self.attack is None:
            return text
        *others, last = (f"{100.0 * share:g}" for share in self.attacked)
        shares = f"mean over {', '.join(others)} and {last}%" if others else f"{last}%"
        return f"{text}, {shares} of the clients attacked ({self.attack.describe(self.held_out.judges.unit)})"

    def shown(self, value: float) -> str:
        """A value as people read it."""
        return f"{100.0 * value:.1f}%" if self.accuracy else f"{value:.4g}"
