"""Stochastic gradient descent: the local step of the paper's Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass

from wafl.algorithms.local.plain import Plain


@dataclass(frozen=True)
class SGD(Plain):
    """Descend along the gradient; momentum and weight decay belong to the schedule."""


sgd = SGD
