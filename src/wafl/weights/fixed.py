"""Keep the same client weights in all rounds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wafl.base.options import maker
from wafl.parts.client_weights import ClientWeights, normalized


@dataclass(frozen=True)
class ByExamples(ClientWeights):
    """``n_i / n``: every example has the same weight."""

    def initial(self, num_examples: Sequence[int]) -> Tensor:
        """Return the shares of the clients' examples."""
        return normalized(num_examples)


@dataclass(frozen=True)
class Uniform(ClientWeights):
    """``1 / m``: every client has the same weight."""

    equal = True

    def initial(self, num_examples: Sequence[int]) -> Tensor:
        """Return equal weights."""
        return normalized([1.0] * len(num_examples))

    def needs_sizes(self, local_steps: int | None) -> bool:
        """Return False, since equal weights need no sizes."""
        return False


@dataclass(frozen=True)
class Fixed(ClientWeights):
    """Your own weights, one per client, scaled to sum to 1."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        for client, value in enumerate(self.values):
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"client {client} has weight {value}: weights must be finite and at least 0")
        if not sum(self.values) > 0:
            raise ValueError("all client weights are 0: give at least one client a positive weight")

    def initial(self, num_examples: Sequence[int]) -> Tensor:
        """Return the given weights; raise ValueError unless there is one per client."""
        if len(self.values) != len(num_examples):
            raise ValueError(f"{len(self.values)} client weights for {len(num_examples)} clients: give one weight each")
        return normalized(self.values)

    def enlarged(self, weights: Tensor, num_examples: Sequence[int]) -> Tensor:
        """Return the weights with 0 for new clients."""
        return torch.cat([weights, weights.new_zeros(len(num_examples) - len(weights))])

    @property
    def closed(self) -> bool:
        """True, since the weights are for the first clients only."""
        return True

    def needs_sizes(self, local_steps: int | None) -> bool:
        """Return False, since given weights need no sizes."""
        return False


by_examples = maker(ByExamples)
uniform = maker(Uniform)


def fixed(values: Sequence[float] | Tensor) -> Fixed:
    """Use your own weights, one number per client, at least 0; they are scaled to sum to 1."""
    if isinstance(values, Mapping | str):
        raise ValueError(f"values={values!r} must be a list of numbers, one per client, in the order of the clients")
    return Fixed(tuple(float(value) for value in values))
