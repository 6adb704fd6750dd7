"""Where the ball is centered: the client weights lambda, by rule or from optimal transport."""

from wafl.weights.agnostic import Agnostic, agnostic
from wafl.weights.base import ClientWeights, Cohort, LearnedWeights, LossQuery, Round
from wafl.weights.fixed import ByExamples, Fixed, Uniform, by_examples, fixed, uniform
from wafl.weights.learned import Learned, StepSize, project_to_simplex
from wafl.weights.snapshot import Snapshot, snapshot
from wafl.weights.transport import TransportWeights, barycenter, cover, mixture, nearest

__all__ = [
    "Agnostic", "ByExamples", "ClientWeights", "Cohort", "Fixed", "Learned", "LearnedWeights", "LossQuery", "Round",
    "Snapshot", "StepSize", "TransportWeights", "Uniform", "agnostic", "barycenter", "by_examples", "cover", "fixed",
    "mixture", "nearest", "project_to_simplex", "snapshot", "uniform",
]  # fmt: skip

RULES = {"by_examples": by_examples, "uniform": uniform, "agnostic": agnostic, "snapshot": snapshot}
"""Rules that an experiment file can name."""
