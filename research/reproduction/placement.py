"""Prior knowledge about images from other sources: objects are placed, scaled and turned differently.

No function uses a target. Held-out examples can be moved like this, to judge trials by them (:class:`Placement`), a
ball can make such moves cheap (:func:`ball`), and training images can be moved so at random (:func:`augmented`).
"""

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from research.domains import clients_of
from wafl.base.random import uniform
from wafl.methods import Method
from wafl.objectives import Wasserstein, moved
from wafl.objectives.ball.cost_matrix import CostMatrix
from wafl.shifts.shift import PURPOSE, Draw, Shift, check_images, each_row
from wafl.weights import ClientWeights, fixed

PIXELS, ZOOM, DEGREES = 2.0, 1.25, 15.0
"""The maximum move, factor and angle of an image; fixed before any test."""
SHRINKAGE = 0.1
"""The round part of a cost matrix, the same as in the cost matrix of clients."""


def placed(x: Tensor, draws: Tensor) -> Tensor:
    """Move, zoom and turn images ``x [N, C, H, W]``, with 0 outside.

    ``draws [N, 4]`` are fractions of the maximum: down, right, larger, counterclockwise.
    """
    down, right, larger, turn = draws.to(x).unbind(1)
    height, width = x.shape[-2:]
    aside, along = right * 2.0 * PIXELS / width, down * 2.0 * PIXELS / height
    angle, scale = math.radians(DEGREES) * turn, ZOOM**-larger
    sine, cosine = scale * angle.sin(), scale * angle.cos()
    maps = torch.stack([cosine, -sine, -aside, sine, cosine, -along], dim=1)  # from where each pixel is read
    grid = functional.affine_grid(maps.view(-1, 2, 3), list(x.shape), align_corners=False)
    return functional.grid_sample(x, grid, align_corners=False)


@dataclass(frozen=True)
class Placement(Shift):
    """A shift that moves, zooms and turns every image by a separate draw."""

    def _label(self, unit: str) -> str:
        far, zoom, angle = self.severity * PIXELS, ZOOM**self.severity, self.severity * DEGREES
        return f"images moved by up to {far:g} pixels, zoomed by up to {zoom:g}, turned by up to {angle:g} degrees"

    def _shifted(self, x: Tensor, seed: int, rows: Tensor) -> Tensor:
        check_images(x, "placement")
        draws = each_row(rows, x.flatten(1), seed, Draw.PLACEMENT, lambda _, key: uniform(key, PURPOSE, 4))
        return placed(x, self.severity * (2.0 * torch.cat(draws) - 1.0))


def cost_matrix_of(images: Tensor) -> CostMatrix:
    """Return the cost matrix that makes moves d of these images cheap: the root of the mean ``d d^T``, shrunk."""
    moves = (Placement(1.0, bounds=None).apply(images) - images).flatten(1).double()
    spread = moves.T @ moves
    spread *= (1.0 - SHRINKAGE) * len(spread) / spread.trace()
    values, vectors = torch.linalg.eigh(spread + SHRINKAGE * torch.eye(len(spread), dtype=torch.float64))
    return CostMatrix((vectors * values.clamp_min(0.0).sqrt()) @ vectors.T)


def ball(clients: str, center: int, radius: float) -> Method:
    """Return WAFL around source ``center`` of the task ``clients``, in a ball with cheap moves of its images."""
    objective = Wasserstein(radius=radius, cost_matrix=_cost_matrix_of_source(clients, center), bounds=None)
    return Method("WAFL", objective, _one_or_all(clients, center))


def augmented(clients: str, center: int | None = None) -> Method:
    """Return FedAvg on randomly moved images, of one source of a domain task, or of all with equal weights."""
    return Method("Augmented", moved(Placement(1.0)), _one_or_all(clients, center))


def _one_or_all(clients: str, center: int | None) -> ClientWeights:
    return fixed([float(center in (None, client)) for client in range(clients_of(clients).num_clients)])


@cache
def _cost_matrix_of_source(clients: str, center: int) -> CostMatrix:
    return cost_matrix_of(clients_of(clients).train.of(center)[0])
