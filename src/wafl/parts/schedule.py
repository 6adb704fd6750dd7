"""Define the schedule of training: rounds, cohort, local work, learning rate."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

from wafl.base.checks import in_round
from wafl.base.options import (
    Choice,
    Count,
    EachRound,
    NotNegative,
    Positive,
    Range,
    Seed,
    Tunable,
    check_options,
    unknown_option,
)
from wafl.tasks.gpu.precision import BFLOAT16, FLOAT32, TF32
from wafl.tasks.modes.statistics import AVERAGED, FEDBN, FROZEN, PER_CLIENT


@dataclass(frozen=True)
class LocalWork:
    """A client's work in a round: a number of steps or epochs; ``batch_size=None`` uses all examples in each step."""

    local_steps: int | None
    local_epochs: int | None
    batch_size: int | None
    statistics: str = FROZEN
    precision: str = FLOAT32
    deterministic: bool = True
    shift: int = 0
    flip: float = 0.0

    def num_steps(self, num_examples: Sequence[int]) -> list[int]:
        """Return the number of local steps of each client."""
        if self.local_steps is not None:
            return [self.local_steps] * len(num_examples)
        assert self.local_epochs is not None
        return [self.local_epochs * self.steps_per_epoch(count) for count in num_examples]

    def steps_per_epoch(self, count: int) -> int:
        """Return the number of batches of a client with ``count`` examples."""
        return 1 if self.batch_size is None else math.ceil(count / self.batch_size)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The schedule of training."""

    rounds: Annotated[int, Count(), "The number of rounds."]
    cohort: Annotated[int | None, Count(), "Clients per round; by default all of them."] = None
    local_steps: Annotated[int | None, Count(), "Steps per client and round; give these or local_epochs."] = None
    local_epochs: Annotated[int | None, Count(), "Passes of each client over its examples per round."] = None
    batch_size: Annotated[int | None, Count(), "Examples per step; in Python, None uses all examples."] = 64
    learning_rate: Annotated[
        float | Callable[[int], float],
        EachRound(Positive()),
        Tunable(),
        "The learning rate of the clients' steps; in Python, it may be a function of the round.",
    ] = 0.01
    momentum: Annotated[float, Range(0, 1, high_open=True), "The momentum of the clients' steps, within a round."] = 0.0
    weight_decay: Annotated[float, NotNegative, "The weight decay of the clients' steps."] = 0.0
    label_smoothing: Annotated[
        float,
        Range(0, 1, high_open=True),
        "The share of every label that is spread evenly over all classes, where clients descend the cross-entropy.",
    ] = 0.0
    server_learning_rate: Annotated[
        float | None, Positive(), "Shorthand for the method's server, an sgd with this rate."
    ] = None
    seed: Annotated[int, Seed(), "The seed of every random choice."] = 0
    clip_norm: Annotated[
        float | None, Positive(), "The maximum length of an update; a longer one is shortened to this length."
    ] = None
    statistics: Annotated[
        str,
        Choice((FROZEN, AVERAGED, PER_CLIENT, FEDBN)),
        "What becomes of the running statistics of BatchNorm layers in training mode: averaged like the parameters, "
        "kept by each client, kept with the scale and offset of these layers (fedbn), or frozen, for which these "
        "layers must be in eval().",
    ] = FROZEN
    precision: Annotated[
        str,
        Choice((FLOAT32, TF32, BFLOAT16)),
        "What the layers of a network are computed with: float32, or, to be faster on a GPU, tf32 or bfloat16; "
        "everything else stays float32.",
    ] = FLOAT32
    deterministic: Annotated[
        bool, "Whether a GPU gives the same bits each time; without it, convolutions may be faster."
    ] = True
    shift: Annotated[int, Count(0), "The maximum random translation of images in every step, in pixels."] = 0
    flip: Annotated[float, Range(0, 1), "The probability that an image is mirrored in a step."] = 0.0

    average_last: Annotated[
        float | None,
        Range(0, 1, low_open=True),
        "The share of the rounds, counted from the last, whose models are averaged at the end: 0.5 is the last half.",
    ] = None

    def __post_init__(self) -> None:
        check_options(self)
        if self.average_last is not None and self.statistics != FROZEN:
            raise ValueError(
                f"average_last={self.average_last} with statistics={self.statistics!r}: the mean of models has other "
                "running statistics than their mean; put BatchNorm layers in eval(), or leave average_last out"
            )
        if (self.local_steps is None) == (self.local_epochs is None):
            raise ValueError(
                "give local_steps or local_epochs, exactly one of them "
                f"(local_steps={self.local_steps}, local_epochs={self.local_epochs}), such as local_steps=1"
            )

    @property
    def local_work(self) -> LocalWork:
        """The work of a client in a round."""
        work = self.local_steps, self.local_epochs, self.batch_size, self.statistics, self.precision
        return LocalWork(*work, self.deterministic, self.shift, self.flip)

    def scalars(self, round: int) -> dict[str, float]:
        """Return the numbers that the server sends to clients for a round."""
        clip = {} if self.clip_norm is None else {"clip_norm": self.clip_norm}
        decay = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        smoothing = {"label_smoothing": self.label_smoothing} if self.label_smoothing else {}
        return {"learning_rate": self.rate(round), **decay, **smoothing, **clip}

    def rate(self, round: int) -> float:
        """Return the learning rate of a round."""
        return in_round("learning_rate", self.learning_rate, round)


def make_schedule(options: Mapping[str, Any]) -> Schedule:
    """Return the schedule with these options; raise an error with the closest name for an unknown option."""
    known = [field.name for field in fields(Schedule)]
    for name in options:
        if name not in known:
            raise TypeError(unknown_option("the schedule", name, known))
    return Schedule(**options)
