"""Stochastic gradient descent: the local step of the paper's Algorithm 1."""

from dataclasses import dataclass

from wafl.base.options import maker
from wafl.parts.local_step import LocalStep


@dataclass(frozen=True)
class SGD(LocalStep):
    """Descend along the gradient; momentum and weight decay belong to the schedule."""


sgd = maker(SGD)
