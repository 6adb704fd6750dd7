"""Compute the ground cost d^2 between two clouds, and run POT's network simplex on it."""

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from wafl.base.extras import require
from wafl.weights.transport.clouds import Cloud

_LARGEST = 10**8  # 10,000 points on each side take about 4 GB inside POT
_MAX_PIVOTS = 10**9


@dataclass(frozen=True)
class Pair:
    """An optimal plan between two clouds: its cost, its arcs, and the potentials ``f_r + g_k <= d^2(x_r, y_k)``."""

    value: float
    arcs: tuple[Tensor, Tensor]
    f: Tensor
    g: Tensor

    def swapped(self) -> Self:
        """Return the plan in the opposite direction."""
        return replace(self, arcs=(self.arcs[1], self.arcs[0]), f=self.g, g=self.f)


def transport_package() -> Any:
    """Return POT, or raise ValueError with the command that installs it."""
    return require("ot", extra="transport", what="optimal transport")


def ground_cost(a: Cloud, b: Cloud) -> Tensor:
    """Return ``d^p((x, y), (x', y')) = ||x - x'||^p``, plus the cost of labels for clouds with labels.

    With a label cost kappa, the cost of labels is the cost of the ball: ``kappa 1(y != y')`` for classes, ``kappa ||y -
    y'||^2`` for targets. Without a label cost it is ``W_p^p(cloud of y, cloud of y')`` (Alvarez-Melis and Fusi,
    "Geometric dataset distances via optimal transport", NeurIPS 2020), which compares labels by their points, so the
    two data sets may use different names.

    >>> two = Cloud(torch.tensor([[0.0], [1.0]], dtype=torch.float64), torch.tensor([0, 1]), total=2)
    >>> ground_cost(two, two)
    tensor([[0., 2.],
            [2., 0.]], dtype=torch.float64)
    """
    ot = transport_package()
    x = a.x.numpy()
    cost = torch.from_numpy(ot.dist(x, x if a is b else b.x.numpy(), "sqeuclidean" if a.order == 2 else "euclidean"))
    if a.y is None or b.y is None:
        return cost
    if a.label_cost is not None:
        return cost + a.label_cost * _label_distance(a.y, b.y)
    (labels, of_row), (others, of_column) = (cloud.unique(return_inverse=True) for cloud in (a.y, b.y))
    between = torch.tensor(
        [
            [solve_pair(cost[of_row == i][:, of_column == j]).value for j in range(len(others))]
            for i in range(len(labels))
        ],
        dtype=torch.float64,
    )
    return cost + between[of_row][:, of_column]


def _label_distance(y: Tensor, other: Tensor) -> Tensor:
    """Return ``1(y != y')`` for classes and ``||y - y'||^2`` for targets."""
    if not (y.is_floating_point() or other.is_floating_point()):
        return (y[:, None] != other).to(torch.float64)
    return (y.double().view(len(y), 1, -1) - other.double().view(1, len(other), -1)).square().sum(2)


def solve_pair(cost: Tensor) -> Pair:
    """Compute the exact transport between two clouds of equally weighted points."""
    rows, columns = (torch.full((n,), 1.0 / n, dtype=torch.float64) for n in cost.shape)
    plan, value, f, g = network_simplex(rows, columns, cost.numpy())
    from_row, to_column = torch.from_numpy(plan).nonzero(as_tuple=True)
    return Pair(value, (from_row, to_column), f, g)


def network_simplex(a: Tensor, b: Tensor, cost: Any) -> tuple[Any, float, Tensor, Tensor]:
    """Return plan, value and potentials; a sparse cost allows only its arcs, and POT's warnings raise errors."""
    ot = transport_package()
    scale = float(cost.max()) or 1.0  # POT's tolerances are absolute
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan, log = ot.emd(a.numpy(), b.numpy(), cost / scale, numItermax=_MAX_PIVOTS, log=True)
    if log["warning"] is not None:
        raise RuntimeError(f"POT's network simplex on {len(a)} x {len(b)} points failed: {log['warning']}")
    return plan, scale * float(log["cost"]), scale * torch.from_numpy(log["u"]), scale * torch.from_numpy(log["v"])


def check_size(costs: int) -> None:
    """Raise ValueError if there are too many costs for the memory."""
    if costs > _LARGEST:
        raise ValueError(
            f"{costs:.2g} costs between points are more than the limit of {_LARGEST:.0e}: "
            f"draw {math.sqrt(costs / _LARGEST):.1f} times fewer points with sample="
        )
