"""Find properties that make training hard: columns with far larger values, and clients with a single class."""

import math
from collections.abc import Sequence

import torch

from wafl.base.describe import some
from wafl.data.examples import CHUNK, Examples

MOST_UNEVEN = 100.0
"""The ratio of scales above which columns must be scaled."""
LARGE = 10.0
"""The size of unbounded values that likely causes a growing loss."""
REMEDY = "scale your columns, such as with standardize=True"


def column_scales(examples: Examples) -> torch.Tensor:
    """Return the root mean square of the values of each column that are not 0, and 0 for a column of zeros."""
    total = count = torch.zeros(examples.shape, dtype=torch.float64)
    for chunk in examples.raw.split(CHUNK):
        x = examples.prepare(chunk, torch.float64)
        total, count = total + x.square().sum(0), count + (x != 0).sum(0)
    return (total / count.clamp_min(1.0)).sqrt()


def uneven_columns(examples: Examples, columns: Sequence[str] | None, *, large: float = math.inf) -> str:
    """Name the columns with the largest and the smallest scale, and the remedy; empty if the scales are similar.

    ``large``: also name a single column with values of this size.
    """
    if len(examples.shape) != 1 or not examples.shape[0]:
        return ""
    scales = column_scales(examples)
    used = scales[scales > 0]
    if not len(used):
        return ""
    high, low = int(scales.argmax()), int(torch.where(scales > 0, scales, math.inf).argmin())
    ratio, most = float(scales[high] / scales[low]), float(scales[high])
    names = [f"column {index}" if columns is None else repr(columns[index]) for index in (high, low)]
    if ratio > MOST_UNEVEN:
        return (
            f"{names[0]} has values of about {most:.3g}, and {names[1]} of about {float(scales[low]):.3g}, "
            f"{ratio:.3g} times smaller: {REMEDY}"
        )
    return f"{names[0]} has values of about {most:.3g}: {REMEDY}" if most > large else ""


def of_one_class(names: Sequence[str], label_counts: torch.Tensor | None) -> str:
    """Name the clients with examples of a single class, if there are any.

    ``label_counts`` is ``[clients, classes]``.
    """
    single = [] if label_counts is None else ((label_counts > 0).sum(1) == 1).nonzero().flatten().tolist()
    if not single:
        return ""
    have = "has" if len(single) == 1 else "have"
    alone = some([names[client] for client in single])
    return f"{len(single)} of {len(names)} clients {have} examples of a single class: {alone}"
