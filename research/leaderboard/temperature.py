"""Fit a temperature: the number that logits are divided by for the smallest log-loss."""

from collections.abc import Sequence

import torch
from torch import Tensor

TEMPERATURES = tuple(2.0 ** (index / 4.0) for index in range(-20, 21))
"""The temperatures at which losses are computed: from 1/32 to 32, four per factor of 2."""


def losses_at(logs: Tensor, y: Tensor) -> list[float]:
    """Return the log-loss of logarithms of probabilities ``[N, classes]`` at each temperature."""
    logs = logs.double()
    right = logs.gather(1, y[:, None])[:, 0]
    return [float((torch.logsumexp(logs / each, 1) - right / each).mean()) for each in TEMPERATURES]


def best(losses: Sequence[float]) -> tuple[float, float]:
    """Return the best temperature and its log-loss, by a parabola through the smallest of the losses.

    >>> best([(index - 24) ** 2 / 100 + 0.5 for index in range(41)])
    (2.0, 0.5)
    """
    index = min(range(len(losses)), key=losses.__getitem__)
    if not 0 < index < len(losses) - 1:
        return TEMPERATURES[index], losses[index]
    before, here, after = losses[index - 1 : index + 2]
    bend = before - 2.0 * here + after
    shift = 0.5 * (before - after) / bend if bend > 0.0 else 0.0
    return TEMPERATURES[index] * 2.0 ** (shift / 4.0), here - 0.25 * (before - after) * shift


def scaled(logs: Tensor, temperature: float) -> Tensor:
    """Return the logarithms of probabilities at this temperature."""
    return (logs.double() / temperature).log_softmax(-1)
