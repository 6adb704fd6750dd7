"""Rows of a data set packed into a federation, with images kept as bytes."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from wafl.base.bounds import Mover
from wafl.base.options import Range
from wafl.data.examples import Examples
from wafl.data.federation import Federation
from wafl.data.preprocessing import make_preprocessing, pixel_statistics
from wafl.data.splits import split_rows


class Skew(Protocol):
    """A change of a client's features that no other client has, such as a shift of :mod:`wafl.shifts`."""

    def apply(self, x: Tensor, seed: int, rows: Tensor) -> Tensor:
        """The moved ``x [N, ...]``, with values in [0, 1]; random draws are keyed by the numbers in ``rows``."""
        ...


def pack(
    x: Tensor,
    y: Tensor,
    shares: Sequence[Tensor],
    *,
    num_classes: int | None,
    max_value: int | None,
    preprocess: str,
    num_train: int | None = None,
    test_fraction: float = 0.25,
    skew: Sequence[Skew] | None = None,
    names: Sequence[str] | None = None,
    seed: int = 0,
) -> Federation:
    """A federation with one client per share: a share lists the rows of ``x`` and ``y`` that its client has.

    With ``num_train``, the rows from there on are for testing; otherwise each client holds out ``test_fraction`` of its
    own rows.
    """
    Range(0.0, 1.0, ": 0.25 holds a quarter out", high_open=True).check("test_fraction", test_fraction)
    if num_train is not None:
        parts = [(rows[rows < num_train], rows[rows >= num_train]) for rows in shares]
    else:
        sizes = torch.tensor([len(rows) for rows in shares])
        local = split_rows(0, sizes, test_fraction, seed)
        parts = [(rows[kept], rows[held]) for rows, (kept, held) in zip(shares, local, strict=True)]
    for client, (kept, _) in enumerate(parts):
        if len(kept) == 0:
            raise ValueError(f"client {client} would have no training example: use fewer clients")
    train, test = (_pick(x, y, [part[which] for part in parts]) for which in (0, 1))
    if skew and max_value is not None:
        train, test = _skew(train, skew, max_value, seed, 0), _skew(test, skew, max_value, seed, len(train.y))
    prepare = make_preprocessing(
        preprocess, max_value, lambda pooled: pixel_statistics([train.raw, test.raw] if pooled else [train.raw])
    )
    train, test = (Examples(pack.raw, pack.y, pack.offsets, prepare) for pack in (train, test))
    left_out = len(y) - len(train.y) - len(test.y)
    names = tuple(names) if names is not None else tuple(f"client {i}" for i in range(len(shares)))
    return Federation(train, test, names, prepare.unit, prepare.bounds, num_classes, left_out)


def _pick(x: Tensor, y: Tensor, rows: list[Tensor]) -> Examples:
    sizes = torch.tensor([len(part) for part in rows])
    chosen = torch.cat(rows)
    return Examples(x.index_select(0, chosen), y[chosen], torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))


def _skew(examples: Examples, skew: Sequence[Skew], max_value: int, seed: int, first: int) -> Examples:
    """Move client i's images by shift ``i mod len(skew)``, in place and back to bytes; numbered from ``first``."""
    raw = examples.raw[:]
    for client in range(examples.num_clients):
        rows = slice(*examples.offsets[client : client + 2].tolist())
        numbers = first + torch.arange(rows.start, rows.stop)
        shift = skew[client % len(skew)]
        shift = shift.within((0.0, 1.0)) if isinstance(shift, Mover) else shift
        moved = shift.apply(raw[rows].to(torch.float32) / max_value, seed, numbers)
        raw[rows] = (moved.clamp(0.0, 1.0) * max_value).round().to(raw.dtype)
    return examples
