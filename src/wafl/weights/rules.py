"""Rules for the client weights lambda that need no distances.

Fixed rules give one vector for the whole training; learned rules change it from what clients report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wafl.core.checks import check_positive

StepSize = float | Callable[[int], float]


@dataclass(frozen=True)
class ByExamples:
    """See :func:`by_examples`."""

    def initial(self, num_examples: Sequence[int]) -> Tensor:
        return _normalised(num_examples)

    def enlarged(self, weights: Tensor, num_examples: Sequence[int]) -> Tensor:
        """With clients that have come since: as if they had been there from the start."""
        return self.initial(num_examples)


@dataclass(frozen=True)
class Uniform:
    """See :func:`uniform`."""

    def initial(self, num_examples: Sequence[int]) -> Tensor:
        return _normalised([1.0] * len(num_examples))

    def enlarged(self, weights: Tensor, num_examples: Sequence[int]) -> Tensor:
        return self.initial(num_examples)


@dataclass(frozen=True)
class Fixed:
    """See :func:`fixed`."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        for client, value in enumerate(self.values):
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"client {client} has weight {value}: weights must be finite and at least 0")
        if not sum(self.values) > 0:
            raise ValueError("all client weights are 0: at least one client must count")

    def initial(self, num_examples: Sequence[int]) -> Tensor:
        if len(self.values) != len(num_examples):
            raise ValueError(f"{len(self.values)} client weights for {len(num_examples)} clients: give one a client")
        return _normalised(self.values)

    def enlarged(self, weights: Tensor, num_examples: Sequence[int]) -> Tensor:
        """Who has come since has no weight."""
        return torch.cat([weights, weights.new_zeros(len(num_examples) - len(weights))])


@dataclass(frozen=True)
class Learned:
    """Weights that climb the clients' losses: AFL's and DRFA's; see :func:`agnostic` and :func:`snapshot`."""

    rule: str
    step_size: StepSize

    def __post_init__(self) -> None:
        if not callable(self.step_size) and not (self.step_size > 0 and math.isfinite(self.step_size)):
            raise ValueError(f"weights_step={self.step_size} must be positive and finite")

    def initial(self, num_examples: Sequence[int]) -> Tensor:
        return _normalised([1.0] * len(num_examples))

    def enlarged(self, weights: Tensor, num_examples: Sequence[int]) -> Tensor:
        """Who has come since starts with an equal share; the others keep theirs among themselves."""
        fresh = weights.new_full((len(num_examples) - len(weights),), 1.0 / len(num_examples))
        return torch.cat([weights * (1.0 - float(fresh.sum())), fresh])

    def step(self, round: int) -> float:
        if not callable(self.step_size):
            return self.step_size
        step = self.step_size(round)
        check_positive(f"round {round}: weights_step", step)
        return step


ClientWeights = ByExamples | Uniform | Fixed | Learned


def by_examples() -> ByExamples:
    """``n_i / n``: every example counts the same."""
    return ByExamples()


def uniform() -> Uniform:
    """``1 / m``: every client counts the same."""
    return Uniform()


def fixed(values: Sequence[float] | Tensor) -> Fixed:
    """Weights of your own, one a client; they are scaled to sum to 1."""
    return Fixed(tuple(float(value) for value in values))


def agnostic(step_size: StepSize = 0.1) -> Learned:
    """AFL: every client reports its loss each round, and ``lambda <- projection(lambda + step_size loss)``."""
    return Learned("agnostic", step_size)


def snapshot(step_size: StepSize = 0.01) -> Learned:
    """DRFA: as AFL, from the losses of a random snapshot of the round on a random part of the clients."""
    return Learned("snapshot", step_size)


def project_to_simplex(values: Tensor) -> Tensor:
    """The nearest point of the probability simplex (Duchi et al., ICML 2008).

    >>> project_to_simplex(torch.tensor([0.9, 0.5]))
    tensor([0.7000, 0.3000])
    """
    values = values - values.max()  # changes no projection, and keeps large values exact
    ordered = values.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1.0) / torch.arange(1, len(values) + 1, dtype=values.dtype, device=values.device)
    threshold = excess[int((ordered > excess).sum()) - 1]
    return (values - threshold).clamp_min(0.0)


def _normalised(values: Sequence[float]) -> Tensor:
    weights = torch.tensor(values, dtype=torch.float64)
    weights = weights / weights.max()  # or the sum of huge weights would overflow
    return weights / weights.sum()
