"""Bound how far the risks of distributions in the ball lie apart, and how far their excess risks (section 4.2)."""

from dataclasses import dataclass

from wafl.base.checks import check_positive
from wafl.theory.constants.assumptions import Constants
from wafl.theory.paper.theorem import Bound, require, require_proven

OUTSIDE = "L_zz radius^2 / 2"


@dataclass(frozen=True)
class Sandwich(Bound):
    """A bound from both sides: the excess risk of every distribution in the ball is ``surrogate_excess +- value``."""

    surrogate_excess: float = 0.0

    @property
    def lower(self) -> float:
        """The lower bound on the excess risk."""
        return self.surrogate_excess - self.value

    @property
    def upper(self) -> float:
        """The upper bound on the excess risk."""
        return self.surrogate_excess + self.value


def risk_spread(constants: Constants, *, radius: float) -> Bound:
    """Bound the difference of the risks of two distributions in the ball by ``2 L_z radius`` (proposition D.1).

    Two distributions of the ball are at most ``2 radius`` apart in W_2, and so in W_1, in which risks are
    L_z-Lipschitz (Kantorovich and Rubinstein). The squared error gets steeper outside the data domain, and the larger
    risk can exceed the center's by ``L_zz radius^2 / 2`` more.
    """
    check_positive("radius", radius)
    require_proven(L_z=constants.L_z)
    terms = {"2 L_z radius": 2.0 * float(constants.L_z) * radius}
    if bend := _outside(constants, radius):
        terms[OUTSIDE] = bend if constants.convex else 2.0 * bend
    return Bound("risks in the ball", terms, None, {"radius": radius})


def _outside(constants: Constants, radius: float) -> float:
    """Return how far a risk in the ball can exceed the center's beyond ``L_z radius``, where L_z is of the domain only.

    A move by d adds at most ``L_z d + L_zz d^2 / 2``, and the mean of ``d^2`` is at most ``radius^2``. If targets move
    as well, ``||W dx - dy||^2 <= (||W||^2 + 1 / label_cost) d^2``.
    """
    if constants.quadratic is None:
        return 0.0
    require_proven(L_zz=constants.L_zz)
    return (float(constants.L_zz) / 2.0 + constants.quadratic / constants.label_cost) * radius**2


def excess_risk_sandwich(
    constants: Constants, *, gamma: float, radius: float, surrogate_excess: float = 0.0, gamma_star: float | None = None
) -> Sandwich:
    """Bound the excess risk on any Q in the ball, within g of the surrogate's excess (lemma 4.2).

    ``g = L_z radius + L_z^2 / (4 gamma) + min(gamma radius^2, L_z radius)``, for every gamma. The last ``L_z radius``
    becomes ``L_z radius + L_zz radius^2 / 2`` for the squared error, which gets steeper outside the data domain.

    The paper's ``2 L_z radius + |gamma - gamma*| radius^2`` needs ``gamma >= L_z / radius``. Its proof uses the gamma*
    of one loss for another. The width is valid all the same if labels stay and the domain is convex, and can fail where
    examples jump. Without gamma*, that proof gives ``2 L_z radius + gamma radius^2``, which is always larger than this
    g. ``surrogate_excess`` is the center of the sandwich; other arguments are as in
    :func:`wafl.theory.robust_generalization`.
    """
    check_positive("gamma", gamma)
    check_positive("radius", radius)
    require_ball(constants)
    require_proven(L_z=constants.L_z)
    steep = float(constants.L_z)
    bend = _outside(constants, radius)
    above = "L_z radius" + (f" + {OUTSIDE}" if bend else "")
    terms = {
        "L_z radius": steep * radius + (0.0 if constants.convex else bend),
        "L_z^2 / (4 gamma)": steep**2 / (4.0 * gamma),
        f"min(gamma radius^2, {above})": min(gamma * radius**2, steep * radius + bend),
    }
    paper = None
    if gamma_star is not None and gamma >= steep / radius * (1.0 - 1e-12):
        paper = 2.0 * steep * radius + abs(gamma - gamma_star) * radius**2
    return Sandwich("excess risk, width g", terms, paper, {"gamma": gamma, "radius": radius}, surrogate_excess)


def require_ball(constants: Constants) -> float:
    """Return the radius of the parameters.

    The bounds compare parameters, so the constants must hold for all of them.
    """
    require(
        constants.params_radius is not None,
        "the parameters are not bounded: give params_radius=C, the C of ||theta|| <= C, to wafl.theory.constants",
    )
    assert constants.params_radius is not None
    return constants.params_radius
