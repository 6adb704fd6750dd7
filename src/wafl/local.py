"""The public door to :mod:`wafl.algorithms.local`: what clients do with a gradient."""

from wafl.algorithms.local import (
    SGD,
    ControlVariates,
    GradientControl,
    LocalState,
    LocalStep,
    Outcome,
    Prox,
    control_variates,
    gradient_control,
    prox,
    sgd,
)

__all__ = [
    "SGD", "ControlVariates", "GradientControl", "LocalState", "LocalStep", "Outcome", "Prox", "control_variates",
    "gradient_control", "prox", "sgd",
]  # fmt: skip
