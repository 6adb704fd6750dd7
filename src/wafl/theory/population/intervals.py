"""Bound the numbers of all clients of a population, from the numbers of K clients.

Each of K independent clients has a number ``V_i`` in ``[0, most]``, such as its certified loss, with the distribution
function F. Three statements, each with its own probability:

**All clients.** With probability ``1 - delta``, ``F >= F_K - epsilon`` everywhere, with the exact epsilon of the
one-sided Kolmogorov statistic, at most the ``sqrt(log(1 / delta) / (2 K))`` of Dvoretzky, Kiefer, Wolfowitz and
Massart. So F is stochastically no larger than the sample with its lowest mass ``epsilon`` moved to ``most``, and so is
every functional that grows with V: the mean (Anderson's bound), and the largest mean in a ball of distributions over
clients,

    KL(Q | F) <= r:     inf over t > 0 of  t r + t log E exp(V / t)
    chi2(Q | F) <= r:   inf over eta of  eta + sqrt(1 + r) sqrt(E (V - eta)_+^2)

each of which is an upper bound at every t and eta (Donsker and Varadhan; Cauchy and Schwarz), so a search that stops
early is still safe.

**A share of all clients.** ``F(V_(j))`` is at least a Beta(j, K - j + 1) variable, so with probability ``1 - delta`` a
share of at least its delta-quantile of all clients is at most ``V_(j)``: exact order statistics.

**One more client.** Its rank among K + 1 is equally likely to be any, so it is at most ``V_(j)`` with probability
``j / (K + 1)`` or more.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Annotated, Any

from wafl.base.errors import PreconditionError
from wafl.base.options import NotNegative, frozen
from wafl.theory.population.levels import exact


@frozen
class Population:
    """The population behind the numbers of some of its clients."""

    values: Annotated[Sequence[float], "One number per client, in ``[0, most]``."]
    most: Annotated[float, "What no client's number is above."]
    delta: Annotated[float, "The probability with which each of the statements about all clients may fail."]

    @property
    def width(self) -> float:
        """The excess of these clients' distribution function over all clients', except with probability ``delta``."""
        from scipy.stats import ksone

        return float(ksone.isf(self.delta, len(self.values)))

    def upper_mean(self) -> float:
        """Return an upper bound on the mean over all clients."""
        return math.fsum(share * value for share, value in self._worst())

    def upper_quantile(self, share: float) -> float:
        """Return a number that at least this share of all clients does not exceed."""
        from scipy.stats import beta

        if not 0.0 < share < 1.0:
            raise ValueError(f"share={share} must lie between 0 and 1")
        ordered, count = sorted(self.values), len(self.values)
        for rank, value in enumerate(ordered, start=1):
            if beta.ppf(self.delta, rank, count - rank + 1) >= share:
                return value
        needed = math.ceil(math.log(self.delta) / math.log(share))
        raise PreconditionError(
            f"{count} clients are too few for a share of {share:g} of all clients with probability "
            f"{1.0 - self.delta:g}: it takes {needed}, or a smaller share"
        )

    def next_client(self, probability: float | Fraction) -> float:
        """Return a number that one more client does not exceed, with this probability over all K + 1 clients."""
        if not 0.0 < probability < 1.0:
            raise ValueError(f"probability={probability} must lie between 0 and 1")
        chance = probability if isinstance(probability, Fraction) else exact(probability)
        rank = math.ceil((len(self.values) + 1) * chance)
        if rank > len(self.values):
            raise PreconditionError(
                f"{len(self.values)} clients are too few for the next one with probability {float(chance):g}: it "
                f"takes {math.ceil(chance / (1 - chance))}, or a smaller probability"
            )
        return sorted(self.values)[max(rank, 1) - 1]

    def upper_mean_within_kl(self, radius: float) -> float:
        """Return an upper bound on the mean over any population within a KL divergence of ``radius``."""
        NotNegative.check("radius", radius)
        worst = self._worst()
        top = max(value for share, value in worst if share > 0)

        def dual(log_t: float) -> float:
            t = math.exp(log_t)
            less = math.fsum(share * math.expm1((value - top) / t) for share, value in worst)
            return t * radius + top + (t * math.log1p(less) if less > -1.0 else -math.inf)

        middle = math.log(max(self.most, 1e-300))
        return min(self.upper_mean() if radius == 0 else math.inf, top, _least(dual, middle - 25.0, middle + 25.0))

    def upper_mean_within_chi2(self, radius: float) -> float:
        """Return an upper bound on the mean over any population within a chi-squared divergence of ``radius``."""
        NotNegative.check("radius", radius)
        worst = self._worst()

        def dual(eta: float) -> float:
            beyond = math.fsum(share * max(value - eta, 0.0) ** 2 for share, value in worst)
            return eta + math.sqrt((1.0 + radius) * beyond)

        # For a small radius the best eta is far below all values, where the root of (1 + r) comes to rest at the mean.
        low = -self.most * (1.0 + 2.0 / math.sqrt(radius)) if radius > 0 else 0.0
        top = max(value for share, value in worst if share > 0)
        return min(self.upper_mean() if radius == 0 else math.inf, top, _least(dual, low, self.most))

    def _worst(self) -> list[tuple[float, float]]:
        """Return shares and values of the clients, with the lowest mass moved to ``most``."""
        width, count = self.width, len(self.values)
        if width >= 1.0:
            raise PreconditionError(
                f"{count} clients are too few for all clients with probability {1.0 - self.delta:g}: use more"
            )
        left, worst = width, [(width, self.most)]
        for value in sorted(self.values):
            kept = max(1.0 / count - left, 0.0)
            left = max(left - 1.0 / count, 0.0)
            worst.append((kept, value))
        return worst


def _least(dual: Callable[[float], float], low: float, high: float) -> float:
    """Return the least value that a search finds; every value is an upper bound."""
    from scipy.optimize import minimize_scalar

    options = {"xatol": 1e-10 * (high - low)}
    minimum: Any = minimize_scalar(dual, bounds=(low, high), method="bounded", options=options)
    return float(minimum.fun)
