"""Model how data change between training and use: shifts that need no model, each with a severity.

``shift.py`` has the base class. To add a shift, write its class in a file here and add one line to ``SHIFTS``.
"""

from wafl.attacks.base import Attack
from wafl.shifts.images import Blur, Occlusion, Rotation, Translation, blur, occlusion, rotation, translation
from wafl.shifts.shift import LabelShift, Shift, label_shift
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
    "MOVES", "SHIFTS", "Affine", "Blur", "GaussianNoise", "Inversion", "LabelShift", "Occlusion", "Rotation", "Shift",
    "ShotNoise", "Translation", "affine", "blur", "gaussian_noise", "inversion", "label_shift", "occlusion", "rotation",
    "shot_noise", "translation",
]  # fmt: skip

SHIFTS: dict[str, type[Attack]] = {
    "affine": Affine,
    "rotation": Rotation,
    "translation": Translation,
    "gaussian_noise": GaussianNoise,
    "shot_noise": ShotNoise,
    "blur": Blur,
    "occlusion": Occlusion,
    "inversion": Inversion,
    "label_shift": LabelShift,
}
"""All shifts that experiment files and ``wafl evaluate`` can name."""
MOVES: dict[str, type[Shift]] = {name: kind for name, kind in SHIFTS.items() if issubclass(kind, Shift)}
"""The shifts that move examples, which an experiment can apply to unseen clients."""
