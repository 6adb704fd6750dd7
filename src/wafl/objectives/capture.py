"""Questions that a captured CUDA graph cannot ask.

A graph is recorded once and replayed without the CPU looking on, so nothing in it may depend on a tensor's value.
Where a loop would stop early it goes on instead: what has settled stays as it is, so the result is the same.
"""

import torch
from torch import Tensor

from wafl.base.bounds import Box


def capturing() -> bool:
    """Whether operations are being recorded instead of computed."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def everywhere(flags: Tensor) -> bool:
    """Whether all flags are set; False while capturing, when nobody knows."""
    return not (flags.is_cuda and capturing()) and bool(flags.all())


def check_inside(x: Tensor, box: Box | None) -> None:
    """Refuse examples outside a box that they have to stay in."""
    if box is None or (x.is_cuda and capturing()):
        return
    low, high = torch.aminmax(x)
    if float(low) < box[0] or float(high) > box[1]:
        raise ValueError(f"examples lie outside bounds={box}: widen the bounds or rescale the data")
