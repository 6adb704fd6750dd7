"""Adversaries: values that move each example before the gradient is taken."""

from wafl.adversaries.affine import Affine, affine
from wafl.adversaries.base import Adversary, AdversaryState, Learning, Move
from wafl.adversaries.bounded import BoundedAscent, ProjectedAscent, fgsm, pgm
from wafl.adversaries.wasserstein import Wasserstein, wasserstein

__all__ = [
    "Adversary",
    "AdversaryState",
    "Affine",
    "BoundedAscent",
    "Learning",
    "Move",
    "ProjectedAscent",
    "Wasserstein",
    "affine",
    "fgsm",
    "pgm",
    "wasserstein",
]
