"""Define the objectives that clients minimize: most move each example first; some add a term to the loss.

One file per family: ``ball/``, ``attacked.py``, ``augmented.py`` and ``penalties.py``. The base class is in
``base.py``.
"""

from wafl.objectives.attacked import Affine, BoundedAscent, ProjectedAscent, affine, fgsm, pgm
from wafl.objectives.augmented import Mixed, RandomMoves, mixup, moved
from wafl.objectives.ball.client_cost_matrix import client_cost_matrix
from wafl.objectives.ball.cost_matrix import CostMatrix
from wafl.objectives.ball.relatives import Resilient, Sinkhorn, resilient, sinkhorn
from wafl.objectives.ball.wasserstein import Wasserstein, wasserstein
from wafl.objectives.base import Move, Objective, ObjectiveState, Term
from wafl.objectives.penalties import (
    Calibrated,
    Invariant,
    SimpleRepresentation,
    Trades,
    calibrated,
    invariant,
    simple_representation,
    trades,
)

__all__ = [
    "Affine",
    "BoundedAscent",
    "Calibrated",
    "CostMatrix",
    "Invariant",
    "Mixed",
    "Move",
    "Objective",
    "ObjectiveState",
    "ProjectedAscent",
    "RandomMoves",
    "Resilient",
    "SimpleRepresentation",
    "Sinkhorn",
    "Term",
    "Trades",
    "Wasserstein",
    "affine",
    "calibrated",
    "client_cost_matrix",
    "fgsm",
    "invariant",
    "mixup",
    "moved",
    "pgm",
    "resilient",
    "simple_representation",
    "sinkhorn",
    "trades",
    "wasserstein",
]  # fmt: skip
