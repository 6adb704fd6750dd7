"""What happens to clients' test data: attacks on each example, shifts, and the worst shift of a distribution.

- ``base.py``: what an attack is, and what it is given;
- ``bounded.py``: PGD and FGSM, for many models and many epsilons at once;
- ``autoattack.py``: AutoAttack, from its authors' package;
- ``wasserstein.py``: the worst shift of a whole distribution within a Wasserstein ball;
- ``shifts/``: natural shifts, which need no model (public as :mod:`wafl.shifts`).
"""

from wafl.attacks.base import Attack, Population
from wafl.attacks.bounded import FGSM, PGD, BoundedAttack, same_but_size
from wafl.attacks.wasserstein import WassersteinShift

__all__ = ["FGSM", "PGD", "Attack", "BoundedAttack", "Population", "WassersteinShift", "same_but_size"]
