"""Test values outside captured CUDA graphs, which cannot test them.

A graph is recorded once and replayed without the CPU, so nothing in it may depend on a tensor's value. A loop that
would stop early continues instead: converged values do not change, so the result is the same.
"""

import torch
from torch import Tensor

from wafl.base.bounds import Box


def capturing() -> bool:
    """Return whether operations are being recorded and not computed."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def everywhere(flags: Tensor) -> bool:
    """Return whether all flags are set; False while capturing, when the flags are unknown."""
    return not (flags.is_cuda and capturing()) and bool(flags.all())


def check_inside(x: Tensor, box: Box | None) -> None:
    """Raise ValueError if examples lie outside a box that they must stay in."""
    if box is None or (x.is_cuda and capturing()):
        return
    low, high = torch.aminmax(x)
    if float(low) < box[0] or float(high) > box[1]:
        raise ValueError(f"examples lie outside bounds={box}: widen the bounds or rescale the data")
