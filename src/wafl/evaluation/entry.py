"""The numbers that a row of a table of scores shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SPLITS = ("train", "test", "unseen")
"""What clients that train hold for training and for testing, and what clients that never train hold."""


@dataclass(frozen=True)
class Entry:
    """The numbers of one row: a model, trained with one or several seeds, under one attack on a share of the clients.

    Accuracies, or losses for a regression: ``pooled`` is over all examples, one value per seed, ``interval`` is that of
    their mean; ``middle`` and ``std`` are across clients. ``unseen`` has those of clients that took no part, and
    ``shift`` describes how their examples were shifted.
    """

    accuracy: bool
    pooled: Sequence[float]
    interval: Sequence[float]
    middle: float
    std: float
    worst: float
    worst_tenth: float
    loss: float
    unseen: Mapping[str, Any] | None
    shift: str = ""
