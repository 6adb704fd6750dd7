"""What a theorem says for given numbers: its terms, their sum, and the paper's own version."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from wafl.base.errors import PreconditionError
from wafl.theory.constants.constant import Constant


@dataclass(frozen=True)
class Bound:
    """What a theorem says: ``terms`` that add up to ``value``; ``paper`` is the paper's own value, if it differs.

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
    """Refuse a theorem whose precondition fails, with a message."""
    if not condition:
        raise PreconditionError(message)


def require_proven(**constants: Constant) -> None:
    """Refuse constants that are infinite, or only estimates."""
    for name, value in constants.items():
        fault = "an estimate" if value.kind == "estimate" else "infinite"
        require(
            value.proven,
            f"{name} = {float(value):.4g} is {fault}: the bound needs a proven, finite one (a linear model, and "
            "bounded data and parameters)",
        )


def root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where the function changes sign between ``low`` and ``high``."""
    from scipy import optimize

    return float(cast(Any, optimize).brentq(function, low, high, xtol=1e-300, rtol=1e-14))
