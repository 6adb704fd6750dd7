"""Define a Lipschitz constant: a number with a statement of how far it can be trusted."""

import math
from typing import Literal, Self

Kind = Literal["exact", "bound", "attested", "estimate"]


class Constant(float):
    """A float with a ``kind`` and a reason.

    ``exact``: no smaller number would do. ``bound``: proven, perhaps larger than needed. ``attested``: somebody claims
    that it is a bound. ``estimate``: found by search, so the true value may be larger. ``why`` states the derivation;
    ``estimate`` is the result of a search, in addition to a bound.

    >>> steep = Constant(2.0, "bound", "product over the layers", estimate=1.5)
    >>> steep, steep / 2, steep.proven
    (2 (bound: product over the layers), 1.0, True)
    """

    kind: Kind
    why: str
    estimate: float | None

    def __new__(cls, value: float, kind: Kind, why: str, estimate: float | None = None) -> Self:
        """Create a float with its kind and reason."""
        self = super().__new__(cls, value)
        self.kind, self.why, self.estimate = kind, why, estimate
        return self

    @property
    def proven(self) -> bool:
        """Whether the true value is certainly no larger; infinity proves nothing."""
        return self.kind in ("exact", "bound") and math.isfinite(self)

    def __repr__(self) -> str:
        return f"{float(self):.4g} ({self.kind}: {self.why})"

    def __reduce__(self) -> "tuple[type[Constant], tuple[float, Kind, str, float | None]]":
        return Constant, (float(self), self.kind, self.why, self.estimate)
