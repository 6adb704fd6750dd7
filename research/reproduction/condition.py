"""The paper's condition on gamma, ``gamma > L_zz``, of trained linear models, and its table.

L_zz is the largest curvature of the loss in an input. The paper's condition is for a cost that is 1-strongly convex.
For the squared l2 cost, which is 2-strongly convex, ``2 gamma > L_zz`` is enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from research.markdown import table
from research.statistics import mean_of
from wafl.data.federation import Federation
from wafl.results.run import Run
from wafl.theory import constants


def curvatures(run: Run, clients: Federation) -> dict[str, float]:
    """Return L_zz over all inputs, and the largest curvature at the clients' training examples."""
    weight, bias = (next(value for value in run.params.values() if value.ndim == ndim).double() for ndim in (2, 1))
    x = clients.train.rows(torch.arange(len(clients.train.y)), torch.float64).flatten(1)
    at_examples = float(curvature_at(x, weight, bias).max())
    return {"L_zz": float(constants(run, clients).L_zz), "L_zz_at_examples": at_examples}


def curvature_at(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the largest eigenvalue of the cross-entropy's Hessian in each input of ``x [N, d]``.

    The Hessian is ``W^T (diag p - p p^T) W``. It has the eigenvalues of ``S^T W W^T S`` for any S with
    ``S S^T = diag p - p p^T``, such as ``diag(sqrt p) (I - sqrt p sqrt p^T)``.
    """
    roots = (x @ weight.T + bias).softmax(-1).sqrt()
    factors = roots.diag_embed() @ (torch.eye(len(weight)).to(x) - roots[:, :, None] * roots[:, None])
    return torch.linalg.eigvalsh(factors.mT @ (weight @ weight.T) @ factors)[:, -1]


def of_condition(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table: per gamma, what it gains, both sides of the condition, and in how many seeds it holds."""
    lines: list[list[str]] = []
    for label in dict.fromkeys(row["label"] for row in rows):
        of_label = [row for row in rows if row["label"] == label and "test" in row]
        shares = sorted({row["attacked"] for row in of_label})
        scores = [str(mean_of([row["accuracy"] for row in of_label if row["attacked"] == share])) for share in shares]
        clean = [row for row in of_label if row["attacked"] == 0]
        limits = [[row[key] for row in clean] for key in ("L_zz", "L_zz_at_examples")]
        gamma = clean[0].get("gamma")
        held = ["" if gamma is None else f"{sum(factor * gamma > each for each in limits[0])} of {len(clean)}"
                for factor in (1.0, 2.0)]  # fmt: skip
        means = [mean_of(values) for values in limits]
        cells = [f"{mean.value:.3f}" + ("" if mean.half is None else f" ± {mean.half:.3f}") for mean in means]
        lines.append(["none (FedAvg)" if gamma is None else f"{gamma:g}", *scores, *cells, *held])
    heads = ["gamma", "clean", "40% attacked", "L_zz, all inputs", "L_zz, examples", "gamma > L_zz", "2 gamma > L_zz"]
    return table(heads, lines)
