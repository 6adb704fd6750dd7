"""phi_gamma of a network with cross-entropy from above, along the distance alone.

``A_j = s_j - s_y`` changes by at most ``K_yj t`` over a distance t, with ``K_yj`` the norm of the difference of two
rows of the last layer times the Lipschitz constant of what comes before it (:mod:`wafl.theory.layers`). So

    phi_gamma <= max over t >= 0 of  logsumexp_j(A_j + K_yj t) - gamma t^2,

which :mod:`wafl.theory.lines` bounds by chords, at every gamma > 0. Since no ``K_yj`` is larger than L_z, each chord
lies below ``loss + L_z t``: at ``gamma = L_z / (2 radius)`` the certificate is at most ``E[loss] + L_z radius``.
"""

from __future__ import annotations

import copy
import math
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from wafl.core.norms import dual
from wafl.core.task import Task
from wafl.theory.layers import last_layer
from wafl.theory.lines import along_lines

_KNOWN: WeakKeyDictionary[Task, tuple[Tensor, Tensor | None]] = WeakKeyDictionary()
"""The last parameters that were asked about: clients are asked in pieces."""


def margin_slopes(task: Task, params: Tensor, norm: float, features: int) -> Tensor | None:
    """``K [C (y), C (j)]`` at the parameters ``[P]``; None if a layer is not known, or the loss is another.

    ``features`` is the dimension of the inputs.
    """
    if not task.loss.logistic:
        return None
    found = _KNOWN.get(task)
    if found is None or not torch.equal(found[0], params):
        found = params.clone(), _round_slopes(task, params)
        _KNOWN[task] = found
    # ||g||_* is at most sqrt(d) ||g||_2 for the l_inf ball, and ||g||_2 for l1 and l2.
    return None if found[1] is None else found[1] * (math.sqrt(features) if dual(norm) == 1 else 1.0)


def _round_slopes(task: Task, params: Tensor) -> Tensor | None:
    module = copy.deepcopy(task.module)
    with torch.no_grad():
        for name, value in task.unflatten(params).items():
            module.get_parameter(name).copy_(value)
    found = last_layer(module)
    if found is None:
        return None
    weight, before = found
    return torch.stack([(weight - row).norm(dim=1) for row in weight]) * before.slope


def along_margins(slopes: Tensor, outputs: Tensor, y: Tensor, gamma: float, tolerance: float) -> tuple[Tensor, Tensor]:
    """The bound of each example, and the squared distance at which it is attained; ``outputs [n, C]``, ``y [n]``."""
    a = outputs - outputs.gather(-1, y[:, None])
    line = along_lines(a, slopes[y], gamma, torch.full_like(a[:, 0], tolerance))
    return line.upper, line.t.square()
