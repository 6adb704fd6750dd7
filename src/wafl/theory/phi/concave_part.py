"""How much of the quadratic in phi_gamma of a linear model can be kept where a concave function is wanted (l2)."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from wafl.theory.phi.class_pull import Ball

SHRINK = 0.1
"""By what share a squared distance shrinks at a time, at most."""
NARROW = 1e-3
"""The share of the largest squared distance below which nothing is kept."""


@dataclass(frozen=True)
class Kept:
    """The quadratic that is kept, ``(p - e_y)^T G (p - e_y) / (4 gamma)``, and the rest; both positive semidefinite."""

    quadratic: Tensor
    rest: Tensor

    @classmethod
    def of(cls, ball: Ball, gamma: float) -> Self:
        """For l2: pull the two rows that are farthest apart a little closer, until none are farther than sqrt(8 gamma).

        All rows are pulled along the line through these two, so what is kept is a smaller embedding of the same rows.
        Nothing is kept for other norms, nor of rows that the Gram matrix cannot tell apart.
        """
        kept, limit = ball.gram, 8.0 * gamma
        if ball.norm != 2 or not ball.even or limit < NARROW * float(squared_distances(kept).max()):
            return cls(torch.zeros_like(kept), kept)
        while True:
            apart = squared_distances(kept)
            one, other = divmod(int(apart.argmax()), len(kept))
            widest = float(apart[one, other])
            if widest <= limit * (1.0 + 1e-12):
                return cls(kept, ball.gram - kept)
            line = kept[:, one] - kept[:, other]
            kept = kept - min(1.0 - limit / widest, SHRINK) / widest * torch.outer(line, line)


def squared_distances(gram: Tensor) -> Tensor:
    """Between points with this Gram matrix."""
    own = gram.diagonal()
    return own[:, None] + own[None, :] - 2.0 * gram
