"""Optimal transport straight from its definitions, by SciPy's linear programs and assignment: slow and obvious."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linear_sum_assignment, linprog
from scipy.spatial.distance import cdist

Array = NDArray[np.float64]


def w2_by_assignment(x: Array, y: Array) -> float:
    """W_2^2 between equal numbers of points of equal weight."""
    cost = cdist(x, y, "sqeuclidean")
    return float(cost[linear_sum_assignment(cost)].mean())


def cost_matrix(x: Array, y: Array) -> Array:
    return cdist(x, y, "sqeuclidean")


def least_largest_distance(costs: Sequence[Sequence[Array]], weights: Array | None = None) -> float:
    """``min over lambda of max_j W_2^2(P_lambda, Q_j)``, as one linear program; ``costs[j][i]`` is from P_i to Q_j.

    The unknowns are lambda, the largest distance t, and a plan for each target and source with row sums
    ``lambda_i / n_i``; the plans to one target together have column sums ``1 / n_j``. ``weights`` fixes lambda.
    """
    sources = len(costs[0])
    plans = [(j, i) for j in range(len(costs)) for i in range(sources)]
    starts = dict(zip(plans, np.cumsum([sources + 1] + [costs[j][i].size for j, i in plans]).tolist(), strict=False))
    unknowns = sources + 1 + sum(costs[j][i].size for j, i in plans)
    equal, right, below = [], [], []
    for j, blocks in enumerate(costs):
        columns = sparse.lil_matrix((blocks[0].shape[1], unknowns))
        price = sparse.lil_matrix((1, unknowns))
        price[0, sources] = -1.0
        for i, block in enumerate(blocks):
            rows = sparse.lil_matrix((block.shape[0], unknowns))
            for r in range(block.shape[0]):
                for k in range(block.shape[1]):
                    index = starts[j, i] + r * block.shape[1] + k
                    rows[r, index] = columns[k, index] = 1.0
                    price[0, index] = block[r, k]
                rows[r, i] = -1.0 / block.shape[0]
            equal.append(rows)
            right.append(np.zeros(block.shape[0]))
        equal.append(columns)
        right.append(np.full(blocks[0].shape[1], 1.0 / blocks[0].shape[1]))
        below.append(price)
    simplex = sparse.lil_matrix((1, unknowns))
    simplex[0, :sources] = 1.0
    bounds = (
        [(0, None)] * unknowns if weights is None else [(w, w) for w in weights] + [(0, None)] * (unknowns - sources)
    )
    solved = linprog(
        np.eye(1, unknowns, sources).ravel(),
        A_ub=sparse.vstack(below).tocsr(),
        b_ub=np.zeros(len(below)),
        A_eq=sparse.vstack([*equal, simplex]).tocsr(),
        b_eq=np.concatenate([*right, [1.0]]),
        bounds=bounds,
        method="highs",
    )
    assert solved.success, solved.message
    return float(solved.fun)
