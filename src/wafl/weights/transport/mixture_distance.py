"""W_2^2 from a mixture of clouds to one cloud, as a convex function of the mixture's weights."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wafl.weights.transport.costs import Pair, network_simplex

_ARCS_PER_ROW = 10


@dataclass(frozen=True)
class Evaluation:
    """At given weights: ``value`` is the cost of a plan, and ``cut @ weights`` the dual value of ``g``."""

    value: float
    cut: Tensor
    g: Tensor


class MixtureDistance:
    """``V(lambda) = W_2^2(P_lambda, Q)``, where ``P_lambda = sum_i lambda_i P_i``.

    By duality ``V(lambda) = max over g of sum_i lambda_i <a_i, f_i> + <b, g>`` with ``f_r = min_k (M_rk - g_k)``, so
    *every* g gives a linear function of lambda that lies below V everywhere: a cut. At the optimal g it touches V.

    The plan is searched for among few arcs (the pairs' own plans, with which any lambda is feasible, and the cheapest
    arcs of each point given g); more are opened until the cut proves that none is missing.
    """

    def __init__(self, costs: Sequence[Tensor], pairs: Sequence[Pair]) -> None:
        self.costs, self.pairs = costs, pairs
        self.scale = sum(float(cost.mean()) for cost in costs) / len(costs)
        self._target = torch.full((costs[0].shape[1],), 1.0 / costs[0].shape[1], dtype=torch.float64)
        self._open = [torch.zeros(cost.shape, dtype=torch.bool) for cost in costs]
        for opened, pair in zip(self._open, pairs, strict=True):
            opened[pair.arcs] = True

    def cut(self, g: Tensor) -> Tensor:
        """What g proves: ``V(lambda) >= cut @ lambda``."""
        return torch.stack([f.mean() for f in self.potentials(g)]) + g.mean()

    def at(self, weights: Tensor, slack: float) -> Evaluation:
        """V at some weights, bounded from both sides to within ``slack``."""
        while True:
            value, g = self._restricted(weights)
            cut, opened = self._price(g)
            if not opened or value - float(cut @ weights) <= slack:
                return Evaluation(value, cut, g)

    def potentials(self, g: Tensor) -> list[Tensor]:
        """``f_r = min_k (M_rk - g_k)``, one tensor per source."""
        return [(cost - g).min(1).values for cost in self.costs]

    def _restricted(self, weights: Tensor) -> tuple[float, Tensor]:
        """The cost of the best plan on the open arcs of the sources with weight, and its potential on the target."""
        from scipy.sparse import coo_matrix

        masses: list[Tensor] = []
        rows: list[Tensor] = []
        columns: list[Tensor] = []
        costs: list[Tensor] = []
        first = 0
        for weight, cost, opened in zip(weights.tolist(), self.costs, self._open, strict=True):
            if weight > 0:
                row, column = opened.nonzero(as_tuple=True)
                masses.append(torch.full((len(cost),), weight / len(cost), dtype=torch.float64))
                rows.append(row + first)
                columns.append(column)
                costs.append(cost[row, column])
                first += len(cost)
        arcs = tuple(torch.cat(index).numpy() for index in (rows, columns))
        sparse = coo_matrix((torch.cat(costs).numpy(), arcs), shape=(first, len(self._target)))
        _, value, _, g = network_simplex(torch.cat(masses), self._target, sparse)
        return value, g

    def _price(self, g: Tensor) -> tuple[Tensor, bool]:
        """The cut of g, and whether arcs had to be opened: those with the least ``M_rk - g_k`` in each row."""
        means: list[Tensor] = []
        opened = False
        for cost, arcs in zip(self.costs, self._open, strict=True):
            cheapest = (cost - g).topk(min(_ARCS_PER_ROW, cost.shape[1]), largest=False)
            opened |= not bool(arcs.gather(1, cheapest.indices[:, :1]).all())
            arcs.scatter_(1, cheapest.indices, True)
            means.append(cheapest.values[:, 0].mean())
        return torch.stack(means) + g.mean(), opened
