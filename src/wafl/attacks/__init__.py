"""What happens to clients' test data: attacks on each example, shifts, and the worst shift of a distribution."""

from wafl.attacks.base import Attack, Population
from wafl.attacks.bounded import FGSM, PGD, BoundedAttack, same_but_size
from wafl.attacks.wasserstein import WassersteinShift

__all__ = ["FGSM", "PGD", "Attack", "BoundedAttack", "Population", "WassersteinShift", "same_but_size"]
