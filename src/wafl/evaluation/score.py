"""The result of a test: pooled, across clients, for the worst clients, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from wafl.core.random import Key, Purpose, bits


@dataclass(frozen=True)
class ClientScore:
    """One client's test result; ``accuracy`` is None for a regression, ``weight`` is its share of all test examples."""

    name: str
    accuracy: float | None
    loss: float
    num_examples: int
    attacked: bool
    weight: float


@dataclass(frozen=True)
class Score:
    """The result of testing one model.

    ``accuracy`` and ``loss`` are over all test examples pooled; ``per_client`` is in the order of the clients. Clients
    without test examples are left out.
    """

    per_client: list[ClientScore]
    attack: str = "none"
    unit: str = "input units"
    seed: int = 0

    @property
    def accuracy(self) -> float | None:
        return self._pooled(self._accuracies) if self._accuracies is not None else None

    @property
    def loss(self) -> float:
        return self._pooled(self._losses)

    @property
    def client_accuracy(self) -> float | None:
        """The mean over clients, all counting the same."""
        return float(self._accuracies.mean()) if self._accuracies is not None else None

    @property
    def client_loss(self) -> float:
        return float(self._losses.mean())

    @property
    def std(self) -> float:
        """The standard deviation of the accuracy across clients (for a regression, of the loss)."""
        return float((self._losses if self._accuracies is None else self._accuracies).std(correction=0))

    @property
    def worst_client(self) -> ClientScore:
        """The client with the lowest accuracy (for a regression, the highest loss)."""
        return min(self.per_client, key=lambda client: -client.loss if client.accuracy is None else client.accuracy)

    def worst(self, share: float) -> float:
        """The mean accuracy (for a regression, loss) of the worst ``share`` of the clients, at least one client."""
        if not 0 < share <= 1:
            raise ValueError(f"share={share} must lie in (0, 1]")
        count = max(1, math.ceil(share * len(self.per_client) - 1e-9))
        if self._accuracies is None:
            return float(self._losses.sort(descending=True).values[:count].mean())
        return float(self._accuracies.sort().values[:count].mean())

    @cached_property
    def attacked(self) -> Score | None:
        """The attacked clients alone."""
        return self._part(lambda client: client.attacked)

    @cached_property
    def clean(self) -> Score | None:
        """The clients that were not attacked."""
        return self._part(lambda client: not client.attacked)

    def interval(self, level: float = 0.95, draws: int = 1000) -> tuple[float, float]:
        """A bootstrap interval of the pooled accuracy (for a regression, loss); clients are drawn with replacement."""
        if not 0 < level < 1:
            raise ValueError(f"level={level} must lie in (0, 1)")
        values = self._losses if self._accuracies is None else self._accuracies
        count = len(values)
        chosen = bits(Key.of(self.seed), Purpose.BOOTSTRAP, draws * count).view(draws, count) % count
        weights = self._weights[chosen]
        pooled = (weights * values[chosen]).sum(1) / weights.sum(1)
        low, high = torch.quantile(
            pooled, torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=pooled.dtype)
        ).tolist()
        return low, high

    def summary(self) -> dict[str, Any]:
        """All of the above as plain values, including the attack and the unit of its size."""
        low, high = self.interval()
        parts = {name: part for name, part in (("attacked", self.attacked), ("clean", self.clean)) if part is not None}
        return {
            "attack": self.attack,
            "unit": self.unit,
            "accuracy": self.accuracy,
            "loss": self.loss,
            "low": low,
            "high": high,
            "client_accuracy": self.client_accuracy,
            "client_loss": self.client_loss,
            "std": self.std,
            "worst_client": self.worst(1e-9),
            "worst_10": self.worst(0.1),
            "worst_20": self.worst(0.2),
            **{f"{name}_accuracy": part.accuracy for name, part in parts.items()},
            **{f"{name}_loss": part.loss for name, part in parts.items()},
        }

    def __repr__(self) -> str:
        accuracy = "" if self.accuracy is None else f"accuracy={self.accuracy:.4f}, "
        return f"Score({accuracy}loss={self.loss:.4f}, {len(self.per_client)} clients, attack={self.attack!r})"

    @cached_property
    def _accuracies(self) -> Tensor | None:
        values = [client.accuracy for client in self.per_client if client.accuracy is not None]
        return torch.tensor(values, dtype=torch.float64) if values else None

    @cached_property
    def _losses(self) -> Tensor:
        return torch.tensor([client.loss for client in self.per_client], dtype=torch.float64)

    @cached_property
    def _weights(self) -> Tensor:
        return torch.tensor([client.weight for client in self.per_client], dtype=torch.float64)

    def _pooled(self, values: Tensor) -> float:
        return float(self._weights @ values / self._weights.sum())

    def _part(self, wanted: Callable[[ClientScore], bool]) -> Score | None:
        chosen = [client for client in self.per_client if wanted(client)]
        return Score(chosen, self.attack, self.unit, self.seed) if chosen else None
