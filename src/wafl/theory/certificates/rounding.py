"""What float64 may have lost of a certificate: by so much less than what is reached it may be.

A sum of n products is off by at most ``n u`` times the sum of their sizes (Higham, Accuracy and Stability of Numerical
Algorithms, section 3.1), with ``u = 2^-53``. So each output of a linear model, ``s_j = <w_j, x> + b_j``, is off by at
most ``(d + 1) u`` times ``|w_j| |x| + |b_j|``, whose largest value over the examples is their *magnitude*. The
cross-entropy is off by at most twice as much, because ``logsumexp`` and ``s_y`` are 1-Lipschitz in the outputs; for the
squared error, the magnitude is the square. Means over n examples of m clients add ``n + m`` roundings of the value.
Moved examples have outputs larger by ``||w_j||_* ||x' - x||``, where the move is ``radius`` in the root mean square.
``allowance`` is four times all of this. For networks the magnitude is that of the outputs alone: their allowance is
usual practice, not a proof.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from wafl.base.norms import dual, power_norm
from wafl.tasks.task import Task
from wafl.theory.certificates.mixture import Mixture

CHUNK = 2048
UNIT = 2.0**-53


def magnitudes(mixture: Mixture) -> list[float]:
    """For each client the largest size of what is summed to outputs, over its examples; squared for a squared error."""
    task, params, examples = mixture.task, mixture.params, mixture.examples
    layer = task.linear(params[None])
    found: list[float] = []
    for client in range(examples.num_clients):
        largest = torch.zeros((), dtype=torch.float64)
        rows = torch.arange(*examples.offsets[client : client + 2].tolist())
        for part in rows.split(CHUNK):
            x, y = examples.rows(part, torch.float64), examples.y[part]
            if layer is not None:
                weight, bias = layer[0][0], layer[1][0]
                sizes = x.flatten(1).abs() @ weight.abs().T + bias.abs()
            else:
                sizes = task.outputs(params[None], x[None])[0].detach().abs()
            if y.is_floating_point():
                sizes = (sizes + y.view(len(y), -1).abs()).square()
            largest = torch.maximum(largest, sizes.max())
        found.append(float(largest))
    return found


def allowance(
    task: Task, params: Tensor, sizes: Sequence[int], magnitude: float, radius: float, norm: float, value: float
) -> float:
    """How much larger the exact value may be than the computed one."""
    layer, reach = task.linear(params[None]), 0.0
    if layer is not None and radius > 0:
        reach = radius * float(power_norm(layer[0][0], dual(norm), 1).max())
        reach = reach * (reach + 2.0 * math.sqrt(magnitude)) if task.loss.quadratic is not None else reach
    summed = len(params) if layer is None else layer[0].shape[-1]
    terms = summed + max(sizes) + len(sizes) + 64
    return 4.0 * terms * UNIT * (magnitude + reach + abs(value))
