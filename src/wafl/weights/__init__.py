"""Where the ball is centered: the client weights lambda, by rule or from optimal transport."""

from wafl.weights.rules import (
    ByExamples,
    ClientWeights,
    Fixed,
    Learned,
    StepSize,
    Uniform,
    agnostic,
    by_examples,
    fixed,
    project_to_simplex,
    snapshot,
    uniform,
)
from wafl.weights.transport import TransportWeights, barycenter, cover, mixture, nearest

__all__ = [
    "ByExamples", "ClientWeights", "Fixed", "Learned", "StepSize", "TransportWeights", "Uniform", "agnostic",
    "barycenter", "by_examples", "cover", "fixed", "mixture", "nearest", "project_to_simplex", "snapshot", "uniform",
]  # fmt: skip
