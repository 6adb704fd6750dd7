"""How clients work together: rounds, cohort, local work, learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral

from wafl.core.checks import check_positive, check_seed

LearningRate = float | Callable[[int], float]


@dataclass(frozen=True)
class LocalWork:
    """What a client does in a round; ``batch_size=None`` is all its examples at once."""

    local_steps: int | None
    local_epochs: int | None
    batch_size: int | None

    def num_steps(self, num_examples: Sequence[int]) -> list[int]:
        if self.local_steps is not None:
            return [self.local_steps] * len(num_examples)
        assert self.local_epochs is not None
        return [self.local_epochs * self.steps_per_epoch(count) for count in num_examples]

    def steps_per_epoch(self, count: int) -> int:
        return 1 if self.batch_size is None else math.ceil(count / self.batch_size)


@dataclass(frozen=True)
class Schedule:
    """The hyperparameters of the training; ``cohort=None`` is all clients.

    ``server_learning_rate`` is shorthand for ``server=averaging(sgd(rate))``. A client's update that is longer than
    ``clip_norm`` is shortened to it.
    """

    rounds: int
    cohort: int | None = None
    local_steps: int | None = None
    local_epochs: int | None = None
    batch_size: int | None = 64
    learning_rate: LearningRate = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    server_learning_rate: float | None = None
    seed: int = 0
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        for name in ("rounds", "cohort", "local_steps", "local_epochs", "batch_size"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, Integral) or value < 1:
                raise ValueError(f"{name}={value!r} must be a whole number, at least 1")
            object.__setattr__(self, name, int(value))
        if (self.local_steps is None) == (self.local_epochs is None):
            raise ValueError(
                f"give local_steps or local_epochs, one of them (local_steps={self.local_steps}, "
                f"local_epochs={self.local_epochs})"
            )
        if not callable(self.learning_rate):
            check_positive("learning_rate", self.learning_rate)
        for name in ("server_learning_rate", "clip_norm"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum} must lie in [0, 1)")
        if not (self.weight_decay >= 0 and math.isfinite(self.weight_decay)):
            raise ValueError(f"weight_decay={self.weight_decay} must be finite and at least 0")
        object.__setattr__(self, "seed", check_seed(self.seed))

    @property
    def local_work(self) -> LocalWork:
        return LocalWork(self.local_steps, self.local_epochs, self.batch_size)

    def scalars(self, round: int) -> dict[str, float]:
        """What clients are told of a round, in numbers."""
        clip = {} if self.clip_norm is None else {"clip_norm": self.clip_norm}
        decay = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        return {"learning_rate": self.rate(round), **decay, **clip}

    def rate(self, round: int) -> float:
        if not callable(self.learning_rate):
            return self.learning_rate
        rate = self.learning_rate(round)
        check_positive(f"round {round}: learning_rate", rate)
        return rate
