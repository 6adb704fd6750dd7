"""How the world changes data between training and use: shifts that need no model, each with a severity.

- ``shift.py``: what all shifts share;
- ``geometry.py``: rotation, translation, blur;
- ``occlusion.py``: a square that covers a part of an image;
- ``values.py``: affine maps, Gaussian and shot noise, inversion;
- ``labels.py``: a shift of how common each label is.
"""

from wafl.attacks.shifts.geometry import Blur, Rotation, Translation, blur, rotation, translation
from wafl.attacks.shifts.labels import LabelShift, label_shift
from wafl.attacks.shifts.occlusion import Occlusion, occlusion
from wafl.attacks.shifts.shift import Shift
from wafl.attacks.shifts.values import (
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
