"""The public door to :mod:`wafl.algorithms.local`: what clients do with a gradient."""

from wafl.algorithms.local import (
    SGD,
    ControlVariates,
    LocalState,
    LocalStep,
    Outcome,
    Plain,
    Prox,
    control_variates,
    prox,
    sgd,
)

__all__ = [
    "SGD", "ControlVariates", "LocalState", "LocalStep", "Outcome", "Plain", "Prox", "control_variates", "prox", "sgd",
]  # fmt: skip
