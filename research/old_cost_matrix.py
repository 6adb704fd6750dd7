"""The cost matrix of clients in the unit of ``experiments/registered/natural.toml``.

There, a move costs on average as much as in a round ball. Today's ``cost_matrix="clients"`` has the unit of a left-out
client, and other estimates of its directions.
"""

import torch

from wafl.data.federation import Federation
from wafl.objectives.ball.cost_matrix import CostMatrix


def old_cost_matrix(clients: Federation, shrinkage: float = 0.1) -> CostMatrix:
    """Return the root of ``(1 - shrinkage) B / b + shrinkage I``, with ``b = trace(B) / D``.

    ``B = sum_c sum_i n_ic (m_ic - m_c)(m_ic - m_c)^T / sum n_ic``, with ``m_ic`` the mean of the class c at client i,
    ``n_ic`` the number of its examples, and ``m_c`` the mean over all clients.
    """
    train = clients.train
    x, y = train.x.flatten(1).double(), train.y
    labels = torch.zeros_like(y, dtype=torch.int64) if y.is_floating_point() else y
    owner = torch.repeat_interleave(torch.arange(train.num_clients), train.num_examples)
    away = torch.zeros_like(x)
    for label in labels.unique():
        center = x[labels == label].mean(0)
        for client in owner[labels == label].unique():
            rows = (labels == label) & (owner == client)
            away[rows] = x[rows].mean(0) - center
    between = away.T @ away / len(x)
    size = between.trace() / len(between)
    round_part = torch.eye(len(between), dtype=torch.float64)
    values, vectors = torch.linalg.eigh((1.0 - shrinkage) * between / size + shrinkage * round_part)
    return CostMatrix((vectors * values.clamp_min(0.0).sqrt()) @ vectors.T)
