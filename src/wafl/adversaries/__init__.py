"""Adversaries: values that move each example before the gradient is taken."""

from wafl.adversaries.affine import Affine, affine
from wafl.adversaries.base import Adversary, AdversaryState, Move, Term
from wafl.adversaries.bounded import BoundedAscent, ProjectedAscent, fgsm, pgm
from wafl.adversaries.calibrated import Calibrated, calibrated
from wafl.adversaries.invariant import Invariant, invariant
from wafl.adversaries.resilient import Resilient, resilient
from wafl.adversaries.simple_representation import SimpleRepresentation, simple_representation
from wafl.adversaries.sinkhorn import Sinkhorn, sinkhorn
from wafl.adversaries.trades import Trades, trades
from wafl.adversaries.wasserstein import Wasserstein, wasserstein
from wafl.core.client_shape import client_shape
from wafl.core.shaping import Shape

__all__ = [
    "Adversary",
    "AdversaryState",
    "Affine",
    "BoundedAscent",
    "Calibrated",
    "Invariant",
    "Move",
    "ProjectedAscent",
    "Resilient",
    "Shape",
    "SimpleRepresentation",
    "Sinkhorn",
    "Term",
    "Trades",
    "Wasserstein",
    "affine",
    "calibrated",
    "client_shape",
    "fgsm",
    "invariant",
    "pgm",
    "resilient",
    "simple_representation",
    "sinkhorn",
    "trades",
    "wasserstein",
]
