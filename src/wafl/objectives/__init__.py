"""Objectives: what a client descends. Most move each example first; some add to the loss.

One file per objective, in ``ball/``, ``attacked/``, ``augmented/`` or ``penalties/``; the base class is in ``base.py``.
"""

from wafl.objectives.attacked.affine import Affine, affine
from wafl.objectives.attacked.projected import BoundedAscent, ProjectedAscent, fgsm, pgm
from wafl.objectives.augmented.mixup import Mixed, mixup
from wafl.objectives.augmented.moved import RandomMoves, moved
from wafl.objectives.ball.client_shape import client_shape
from wafl.objectives.ball.resilient import Resilient, resilient
from wafl.objectives.ball.shape import Shape
from wafl.objectives.ball.sinkhorn import Sinkhorn, sinkhorn
from wafl.objectives.ball.wasserstein import Wasserstein, wasserstein
from wafl.objectives.base import Move, Objective, ObjectiveState, Term
from wafl.objectives.learner import Learner
from wafl.objectives.penalties.probabilities import Calibrated, Invariant, Trades, calibrated, invariant, trades
from wafl.objectives.penalties.simple_representation import SimpleRepresentation, simple_representation

__all__ = [
    "Affine", "BoundedAscent", "Calibrated", "Invariant", "Learner", "Mixed", "Move", "Objective", "ObjectiveState",
    "ProjectedAscent", "RandomMoves", "Resilient", "Shape", "SimpleRepresentation", "Sinkhorn", "Term",
    "Trades", "Wasserstein", "affine", "calibrated", "client_shape", "fgsm", "invariant", "mixup", "moved", "pgm",
    "resilient", "simple_representation", "sinkhorn", "trades", "wasserstein",
]  # fmt: skip
