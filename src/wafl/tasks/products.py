"""Multiply matrices, one product per lane.

On ARM, torch computes a product with a transposed matrix through oneDNN, whose call alone takes longer than a small
product. 10 outputs of 64 examples with 64 features take 72 microseconds per lane on a Neoverse N1, and 9 without it. If
the result is stored by columns, torch does not use oneDNN.
"""

import torch
from torch import Tensor

from wafl.tasks.gpu import precision

DETOUR = not torch.backends.mkl.is_available()


def product(a: Tensor, b: Tensor, plus: Tensor | None = None) -> Tensor:
    """Return ``a b^T + plus`` of each lane, ``[L, M, N]``, for ``a [L, M, K]`` and ``b [L, N, K]``.

    ``plus`` may be anything that broadcasts to the result.
    """
    taped = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    if not DETOUR or a.device.type != "cpu" or a.dtype != torch.float32 or precision.is_reduced() or taped:
        return torch.bmm(a, b.mT) if plus is None else torch.baddbmm(plus, a, b.mT)
    result = a.new_empty(a.shape[0], a.shape[1], b.shape[1])
    if plus is None:
        torch.bmm(b, a.mT, out=result.mT)
    else:
        torch.baddbmm(plus.mT, b, a.mT, out=result.mT)
    return result
