"""Where a linear map takes the corners of a box: the corners of a zonotope, in up to three dimensions.

Of the ``2^D`` corners s of the box ``||s||_inf <= 1`` only few end at corners of ``{W s}``: in the plane 2 D, one after
another as a direction turns and one column of W after the other changes its sign. In space every corner is the end of
an edge that is parallel to some column, and along that column the corners look like those of a plane: D turns.
"""

import torch
from torch import Tensor

MOST_INPUTS = {1: 1 << 20, 2: 1 << 20, 3: 1024}
"""How many inputs there may be, by the number of outputs: in space there are about twice their square of points."""
PARALLEL = 1e-9
"""Columns whose directions differ by less count as parallel."""
MISSED = 4.0 * PARALLEL
"""How far from all points a corner may be, relative to the sum of the columns' lengths."""


def corners(weight: Tensor) -> tuple[Tensor, float] | None:
    """Points ``W s`` with s in the box, ``[m, k]`` for ``W [k, D]``, and how far a corner may be from all of them.

    Of a corner and its opposite there is one. None if there are too many, as with more than three outputs.

    >>> points, _ = corners(torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64))
    >>> sorted(points.abs().tolist())
    [[1.0, 2.0], [1.0, 2.0]]
    """
    outputs, inputs = weight.shape
    if inputs > MOST_INPUTS.get(outputs, 0):
        return None
    columns = weight.T[weight.abs().amax(0) > 0]
    missed = MISSED * float(columns.norm(dim=-1).sum())
    if not len(columns):
        return torch.zeros_like(weight[:, 0])[None], 0.0
    if outputs == 1:
        return columns.abs().sum(0)[None], missed
    if outputs == 2:
        return _turned(columns[None], columns[None])[0], missed
    axes = columns / columns.norm(dim=-1, keepdim=True)
    frames = torch.linalg.qr(axes[:, :, None], mode="complete").Q[..., 1:]  # of the plane across each column
    seen = columns @ frames
    alike = seen.norm(dim=-1) <= PARALLEL * columns.norm(dim=-1)
    edges = (alike * (axes @ columns.T).sign()) @ columns
    rest = _turned(seen, columns * ~alike[..., None])
    return torch.cat([rest + edges[:, None], rest - edges[:, None]]).flatten(0, 1), missed


def _turned(plane: Tensor, columns: Tensor) -> Tensor:
    """The sums of ``columns [n, D, k]`` whose signs are those of a turning direction in ``plane [n, D, 2]``."""
    down = (plane[..., 1] < 0) | ((plane[..., 1] == 0) & (plane[..., 0] < 0))
    sign = torch.where(down, -1.0, 1.0).to(plane)[..., None]
    upward = sign * plane
    order = torch.atan2(upward[..., 1], upward[..., 0]).argsort(-1)
    turned = (sign * columns).gather(1, order[..., None].expand_as(columns))
    return turned.sum(1, keepdim=True) - 2.0 * (turned.cumsum(1) - turned)
