"""Where the ball is centered: the client weights lambda, by rule or from optimal transport."""

from wafl.transport import TransportWeights, barycenter, cover, mixture, nearest
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

__all__ = [
    "ByExamples", "ClientWeights", "Fixed", "Learned", "StepSize", "TransportWeights", "Uniform", "agnostic",
    "barycenter", "by_examples", "cover", "fixed", "mixture", "nearest", "project_to_simplex", "snapshot", "uniform",
]  # fmt: skip
