"""How the world changes data between training and use: shifts that need no model, each with a severity.

``shift.py`` is what they share.
"""

from wafl.shifts.images import Blur, Occlusion, Rotation, Translation, blur, occlusion, rotation, translation
from wafl.shifts.labels import LabelShift, label_shift
from wafl.shifts.shift import Shift
from wafl.shifts.values import (
    Affine,
    GaussianNoise,
    Inversion,
    ShotNoise,
    affine,
    gaussian_noise,
    inversion,
    shot_noise,
)

__all__ = [
    "Affine", "Blur", "GaussianNoise", "Inversion", "LabelShift", "Occlusion", "Rotation", "Shift", "ShotNoise",
    "Translation", "affine", "blur", "gaussian_noise", "inversion", "label_shift", "occlusion", "rotation",
    "shot_noise", "translation",
]  # fmt: skip
