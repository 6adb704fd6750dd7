"""Average the models of the last rounds, because with sampled cohorts the last model alone is noisy.

Training continues from the last model. The mean is part of the server's state, so a checkpoint contains it.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from wafl.parts.messages import State, named, owned

MEAN = "mean"
"""The owner of the vectors ``params`` and ``client_weights``, and of the window: its length and the rounds so far."""


def with_mean(rounds: int, share: float, before: State, after: State) -> State:
    """Update the mean over the last ``share`` of the rounds after a query.

    If the number of rounds changes, start the mean again.
    """
    first = rounds - math.ceil(share * rounds)
    kept = owned(MEAN, before.vectors)
    if kept and int(kept["window"][0]) != rounds:
        kept = {}
    if after.round > before.round > first - 1:
        count = int(kept["window"][1]) + 1 if kept else 1
        now = {"params": after.params, "client_weights": after.client_weights}
        kept = {name: _next_mean(kept.get(name), value.double(), count) for name, value in now.items()}
        kept["window"] = torch.tensor([rounds, count])
    others = {name: value for name, value in after.vectors.items() if not name.startswith(f"{MEAN}.")}
    return replace(after, vectors={**others, **named(MEAN, kept)})


def mean_of(state: State) -> tuple[Tensor, Tensor] | None:
    """Return the means of the parameters and of the client weights, if some round was in the window."""
    kept = owned(MEAN, state.vectors)
    return (kept["params"].to(state.params.dtype), kept["client_weights"]) if kept else None


def _next_mean(mean: Tensor | None, value: Tensor, count: int) -> Tensor:
    """Return the mean of ``count`` values; a client that joined had no weight before."""
    if mean is None:
        return value
    joined = torch.nn.functional.pad(mean, (0, len(value) - len(mean)))
    return joined + (value - joined) / count
