"""Stochastic gradient descent: the local step of the paper's Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass

from wafl.algorithms.parts import LocalStep
from wafl.core.options import maker


@dataclass(frozen=True)
class SGD(LocalStep):
    """Descend along the gradient; momentum and weight decay belong to the schedule."""


sgd = maker(SGD)
