"""Choose the center of the ball: the client weights lambda, by rule or from optimal transport.

One file per idea; ``RULES`` lists the rules that an experiment file can name.
"""

from wafl.parts.client_weights import ClientWeights, Cohort, LossQuery, Round
from wafl.weights.divergence import KL, Chi2, chi2, kl
from wafl.weights.fixed import ByExamples, Fixed, Uniform, by_examples, fixed, uniform
from wafl.weights.learned import (
    Agnostic,
    Gap,
    Group,
    Learned,
    PrimalDual,
    Snapshot,
    StepSize,
    agnostic,
    gap,
    group_dro,
    primal_dual,
    project_to_simplex,
    snapshot,
)
from wafl.weights.reweighted import CVaR, QFair, Reweighted, RiskVariance, Slack, Tilted, cvar, qffl, rex, slack, term
from wafl.weights.transport import Distance, TransportWeights, barycenter, bilevel, cover, distance, mixture, nearest

__all__ = [
    "KL", "Agnostic", "ByExamples", "CVaR", "Chi2", "ClientWeights", "Cohort", "Distance", "Fixed", "Gap", "Group",
    "Learned", "LossQuery", "PrimalDual", "QFair", "Reweighted", "RiskVariance", "Round", "Slack", "Snapshot",
    "StepSize", "Tilted", "TransportWeights", "Uniform", "agnostic", "barycenter", "bilevel", "by_examples", "chi2",
    "cover", "cvar", "distance", "fixed", "gap", "group_dro", "kl", "mixture", "nearest", "primal_dual",
    "project_to_simplex", "qffl", "rex", "slack", "snapshot", "term", "uniform",
]  # fmt: skip

RULES = {
    "by_examples": ByExamples, "uniform": Uniform, "agnostic": Agnostic, "snapshot": Snapshot, "cvar": CVaR, "kl": KL,
    "chi2": Chi2, "qffl": QFair, "term": Tilted, "primal_dual": PrimalDual, "slack": Slack,
    "group_dro": Group, "rex": RiskVariance, "gap": Gap,
}  # fmt: skip
"""The rules that an experiment file can name."""
