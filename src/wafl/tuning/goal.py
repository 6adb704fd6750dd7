"""What is best: the accuracy or the loss on held-out data, clean or with a share of the clients attacked."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from wafl.attacks import Attack
from wafl.evaluation.compare import compare
from wafl.evaluation.evaluate import check_attack, check_share
from wafl.results.run import Run
from wafl.tuning.held_out import HeldOut

Metric = Literal["accuracy", "loss"]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Goal:
    """What trials are judged by: the mean of a metric over several shares of attacked clients; share 0 is clean data.

    Without a metric it is the accuracy for classes, and the loss for a regression; without an attack, all data are
    clean.
    """

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
