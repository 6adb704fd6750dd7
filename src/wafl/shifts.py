"""The public door to :mod:`wafl.attacks.shifts`."""

from wafl.attacks.shifts import (
    Affine,
    Blur,
    GaussianNoise,
    Inversion,
    LabelShift,
    Occlusion,
    Rotation,
    Shift,
    ShotNoise,
    Translation,
    affine,
    blur,
    gaussian_noise,
    inversion,
    label_shift,
    occlusion,
    rotation,
    shot_noise,
    translation,
)

__all__ = [
    "Affine", "Blur", "GaussianNoise", "Inversion", "LabelShift", "Occlusion", "Rotation", "Shift", "ShotNoise",
    "Translation", "affine", "blur", "gaussian_noise", "inversion", "label_shift", "occlusion", "rotation",
    "shot_noise", "translation",
]  # fmt: skip
