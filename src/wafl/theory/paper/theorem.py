"""Represent the bound of a theorem for given numbers: its terms, their sum, and the paper's value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from wafl.base.errors import PreconditionError
from wafl.theory.constants.constant import Constant


@dataclass(frozen=True)
class Bound:
    """The bound of a theorem: ``terms`` that add up to ``value``; ``paper`` is the paper's value, if it differs.

    >>> bound = Bound("distance", {"sampling": 1.0, "between": 2.0}, paper=2.5)
    >>> bound.value, bound.largest
    (3.0, 'between')
    """

    name: str
    terms: Mapping[str, float]
    paper: float | None = None
    inputs: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def value(self) -> float:
        """The sum of the terms."""
        return sum(self.terms.values())

    @property
    def largest(self) -> str:
        """The dominant term."""
        return max(self.terms, key=self.terms.__getitem__)

    def __str__(self) -> str:
        terms = " + ".join(f"{value:.4g} ({name})" for name, value in self.terms.items())
        paper = "" if self.paper is None else f"; the paper's: {self.paper:.4g}"
        return f"{self.name}: {self.value:.4g} = {terms}{paper}"


def require(condition: bool, message: str) -> None:
    """Raise PreconditionError with the message if a theorem's precondition fails."""
    if not condition:
        raise PreconditionError(message)


def require_proven(**constants: Constant) -> None:
    """Raise PreconditionError for constants that are infinite or only estimates."""
    for name, value in constants.items():
        fault = "an estimate" if value.kind == "estimate" else "infinite"
        require(
            value.proven,
            f"{name} = {float(value):.4g} is {fault}: the bound needs a proven, finite one (a linear model, and "
            "bounded data and parameters)",
        )


def root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the point between ``low`` and ``high`` at which the function changes sign."""
    from scipy import optimize

    return float(cast(Any, optimize).brentq(function, low, high, xtol=1e-300, rtol=1e-14))
