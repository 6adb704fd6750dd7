"""Attacks on clients' test data: on each example, and the worst shift of a distribution.

``base.py`` has the base class; natural shifts are in ``wafl.shifts``. To add an attack, write its class in a file here
and add one line to ``ATTACKS``.
"""

from wafl.attacks.autoattack import AutoAttack
from wafl.attacks.base import Attack, Function, OwnAttack, Population, Settings
from wafl.attacks.bounded import FGSM, PGD, BoundedAttack, WassersteinShift

__all__ = [
    "ATTACKS", "FGSM", "PGD", "Attack", "AutoAttack", "BoundedAttack", "Function", "OwnAttack", "Population",
    "Settings", "WassersteinShift",
]  # fmt: skip

ATTACKS: dict[str, type[Attack]] = {
    "pgd": PGD,
    "fgsm": FGSM,
    "wasserstein": WassersteinShift,
    "autoattack": AutoAttack,
}
"""All attacks that experiment files and ``wafl evaluate`` can name."""
