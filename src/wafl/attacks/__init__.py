"""What happens to clients' test data: attacks on each example, and the worst shift of a distribution.

``base.py`` is what an attack is; natural shifts are in ``wafl.shifts``.
"""

from wafl.attacks.base import Attack, Function, OwnAttack, Population
from wafl.attacks.bounded import FGSM, PGD, BoundedAttack, same_but_size
from wafl.attacks.distribution import WassersteinShift

__all__ = [
    "FGSM", "PGD", "Attack", "BoundedAttack", "Function", "OwnAttack", "Population", "WassersteinShift",
    "same_but_size",
]  # fmt: skip
