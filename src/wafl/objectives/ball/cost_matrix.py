"""Define the cost matrix of a ball: a ground cost ``||A^-1 (x' - x)||`` makes some moves cheaper than others.

With ``x' = x + A v`` the cost is ``||v||``, so the ball is round in another space. There, a linear model has the
weights ``W A``, and its Gram matrix is ``W A A^T W^T``.
"""

from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor

from wafl.base.fingerprint import tensors_digest
from wafl.tasks.inputs import Inputs, Shifted, dense, shared
from wafl.tasks.problem import Problem
from wafl.tasks.task import Moved

CLIENTS: Final = "clients"
WAYS = f"{CLIENTS!r}, a square matrix, or one number per feature"


class CostMatrix:
    """The matrix A ``[D, D]``; two cost matrices are equal if their numbers are equal."""

    def __init__(self, values: Any, unit: str = "") -> None:
        """Store a matrix, or D numbers for a diagonal matrix: the move of each feature at the same cost.

        ``unit`` describes what a cost of 1 means; empty if it means nothing in particular.
        """
        self.unit = unit
        try:
            given = torch.as_tensor(np.asarray(values, dtype=np.float64).copy())
        except (TypeError, ValueError) as error:
            raise ValueError(f"cost_matrix must be {WAYS}: {error}") from error
        square = given.ndim == 2 and len(given) == given.shape[1] and len(given) > 0
        if not square and not (given.ndim == 1 and len(given) > 0):
            raise ValueError(f"cost_matrix has the shape {tuple(given.shape)}: it must be {WAYS}")
        if not bool(torch.isfinite(given).all()):
            raise ValueError("cost_matrix holds NaN or infinity: give finite numbers")
        if given.ndim == 1 and bool((given <= 0).any()):
            raise ValueError(f"cost_matrix holds {float(given.min()):g}: how far a feature may move must be positive")
        if square and int(torch.linalg.matrix_rank(given)) < len(given):
            raise ValueError("cost_matrix is singular, so some moves would cost infinitely much: add a multiple of I")
        self.matrix = given.diag() if given.ndim == 1 else given
        self.digest = tensors_digest([self.matrix])
        self._copies: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def like(self, x: Tensor) -> Tensor:
        """Return A with the type and on the device of x."""
        kind = (x.dtype, x.device)
        if kind not in self._copies:
            self._copies[kind] = self.matrix.to(x)
        return self._copies[kind]

    def check_fits(self, features: int) -> None:
        """Raise ValueError if examples have another number of features."""
        if len(self.matrix) != features:
            raise ValueError(f"cost_matrix is for {len(self.matrix)} features, and an example has {features}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CostMatrix) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        unit = f"; {self.unit}" if self.unit else ""
        return f"CostMatrix({len(self.matrix)} features, {self.digest[:12]}{unit})"


def check_cost_matrix(value: Any) -> CostMatrix | str | None:
    """Return a user's cost matrix: None for a round ball, or ``"clients"`` to derive it from the clients."""
    if value is None or isinstance(value, CostMatrix):
        return value
    if isinstance(value, str):
        if value == CLIENTS:
            return value
        raise ValueError(f"cost_matrix={value!r} must be {WAYS}")
    return CostMatrix(value)


def ball_unit(unit: str, space: str | None, cost_matrix: Any) -> str:
    """Return the unit of a ball's radius, for data in `unit`.

    >>> ball_unit("pixels", None, CostMatrix([1.0, 2.0], "1 is a left-out client"))
    'pixels, over the cost matrix of the ball: 1 is a left-out client'
    """
    at = unit if space is None else f"units of the output of layer {space!r}"
    if not isinstance(cost_matrix, CostMatrix):
        return at
    return f"{at}, over the cost matrix of the ball" + (f": {cost_matrix.unit}" if cost_matrix.unit else "")


def read_cost_matrix(text: str) -> str | list[float]:
    """Parse a cost matrix in a command's option: ``clients``, or one number per feature."""
    try:
        return text if text == CLIENTS else [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"cost_matrix={text!r} must be {CLIENTS}, or one number per feature with commas") from None


def _product(rows: Tensor, matrix: Tensor) -> Tensor:
    """Return ``rows @ matrix`` for a double matrix; sums in single precision would depend on the number of lanes."""
    return (rows.double() @ matrix).to(rows)


@dataclass(frozen=True)
class StretchedProblem(Problem):
    """A problem in the space where the ball is round: an input u means ``x + A (u - x)``."""

    _: KW_ONLY
    inner: Problem
    x: Inputs
    cost_matrix: CostMatrix

    @cached_property
    def factor(self) -> Tensor:
        """The matrix A in double precision."""
        return self.cost_matrix.like(self.params).double()

    @cached_property
    def _at_rest(self) -> Tensor:
        return self.x.dense()

    def real(self, u: Tensor | Inputs) -> Moved:
        """Return the example that u means, without writing pixels at the end of a linear model's ascent."""
        if isinstance(u, Inputs) and u.shift is None and u.base is self.x.base:
            return u
        if isinstance(u, Inputs) and u.shift is not None and u.weight is not None and u.outputs is not None:
            return u.shifted(_product(u.weight, self.factor.T), u.shift, u.outputs)
        x = self._at_rest
        moved = x + _product((dense(u) - x).flatten(2), self.factor.T).view_as(x)
        known = u.outputs if isinstance(u, Inputs) else None
        return moved if known is None else Inputs(moved, len(moved), outputs=known)

    def forward(self, x: Tensor) -> Inputs:
        """Return the inputs of examples."""
        return shared(x)

    def outputs(self, x: Moved) -> Tensor:
        """Return the model's outputs at examples of this space."""
        return self.inner.outputs(x if isinstance(x, Shifted) else self.real(x))

    def loss_and_gradient(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses, and their gradients in this space."""
        loss, gradient = self.inner.loss_and_gradient(cast(Tensor, self.real(x)), y)
        return loss, _product(gradient.flatten(2), self.factor).view_as(x)

    @cached_property
    def linear(self) -> tuple[Tensor, Tensor] | None:
        """The weights and biases in this space, or None if the model is not linear."""
        linear = self.inner.linear
        return None if linear is None else (_product(linear[0], self.factor), linear[1])

    @cached_property
    def curvature(self) -> Tensor | None:
        """L_zz in this space, or None if it is unknown."""
        return stretched_curvature(self.inner, self.cost_matrix)


def stretched_curvature(problem: Problem, cost_matrix: CostMatrix | None) -> Tensor | None:
    """Return L_zz in the space where the ball is round, ``[L]``, or None if it is unknown."""
    if cost_matrix is None:
        return problem.curvature
    if problem.linear is None:
        return None
    matrix = cost_matrix.like(problem.params).double()
    return problem.output_loss.curvature(_product(problem.linear[0], matrix))


def stretch(problem: Problem, x: Inputs, cost_matrix: CostMatrix) -> StretchedProblem:
    """Return the problem of an objective whose ball has this cost matrix."""
    cost_matrix.check_fits(x.base.flatten(2).shape[-1])
    model = problem.task, problem.params, problem.masks
    return StretchedProblem(*model, inner=problem, x=x, cost_matrix=cost_matrix)
