"""Compute the published facts about each label of a federation, so that others can measure their distance to it.

Per label: a few points (means of groups of its examples), their weights, the distance of the examples from them (the
*spread*, a W_2), and the mean of phi_gamma at a few gammas. This reveals these means of groups of examples, and the
shares of the labels.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from wafl.base.norms import power_norm
from wafl.base.random import Purpose, choose
from wafl.data.examples import Examples
from wafl.promises.known import Ball, Known
from wafl.promises.promise import Label, Labels, Resample
from wafl.promises.quantities import steepest_slope, surrogates
from wafl.weights.transport.costs import network_simplex

SIZES = (4, 16, 64, 256, 1024)
"""The numbers of examples of the resamples whose distance is published."""
RESAMPLES = 20
"""The number of draws per label, minus 1 in all. One more draw is the farthest with probability 1/20 divided by the
number of labels."""
GAMMAS = 16
"""The number of gammas at which the surrogate of each label is published."""
FARTHEST = 20.0
"""The smallest gamma is the slope over this many times the largest radius."""
CHUNK = 4096
SEED = 0
AGREE = 1e-9
"""The allowed difference between numbers from different machines, relative to their size or the size of the
examples."""


@dataclass(frozen=True)
class Cell:
    """The federation's examples of one label, with their shares of it."""

    x: Tensor
    share: Tensor

    def part(self, rows: Tensor) -> "Cell":
        """Return some of these examples, with their shares of that part."""
        return Cell(self.x[rows], self.share[rows] / self.share[rows].sum())


def cells_of(examples: Examples, weights: Sequence[float]) -> dict[int, tuple[Cell, float, Tensor]]:
    """Return each label's examples as long vectors, the label's share of the mixture, and the examples' rows."""
    cells = dict[int, tuple[Cell, float, Tensor]]()
    sizes = examples.num_examples
    share = torch.repeat_interleave(torch.tensor(weights, dtype=torch.float64) / sizes, sizes)
    for label in examples.y[share > 0].unique().tolist():
        rows = ((examples.y == label) & (share > 0)).nonzero()[:, 0]
        total = share[rows].sum()
        cell = Cell(examples.rows(rows, torch.float64).flatten(1), share[rows] / total)
        cells[label] = (cell, float(total), rows)
    return cells


def distance(a: Tensor, a_share: Tensor, b: Tensor, b_share: Tensor, norm: float) -> float:
    """Return the exact W_2 between weighted points."""
    return math.sqrt(max(network_simplex(a_share, b_share, _costs(a, b, norm).numpy())[1], 0.0))


def _costs(a: Tensor, b: Tensor, norm: float) -> Tensor:
    return torch.cat([power_norm(part[:, None] - b[None], norm, 2) for part in a.split(256)])


def quantize(cell: Cell, points: Tensor, norm: float) -> tuple[Tensor, float]:
    """Return the weights of points if each example goes to the nearest, and the distance of the examples, in W_2."""
    weights, square = torch.zeros(len(points), dtype=torch.float64), 0.0
    for x, share in zip(cell.x.split(CHUNK), cell.share.split(CHUNK), strict=True):
        cost, nearest = torch.stack([power_norm(x - point, norm, 2) for point in points], dim=1).min(1)
        weights.index_add_(0, nearest, share)
        square += float(share @ cost)
    return weights, math.sqrt(square)


def centers(cell: Cell, count: int) -> Tensor:
    """Return means of groups of examples that are near each other."""
    from sklearn.cluster import KMeans

    count = min(count, len(cell.x.unique(dim=0)))
    grouped = KMeans(count, n_init=cast(Any, 1), random_state=SEED).fit(
        cell.x.numpy(), sample_weight=cell.share.numpy()
    )
    return torch.from_numpy(grouped.cluster_centers_)


def halves(cell: Cell) -> tuple[Cell, Cell]:
    """Split the examples: points are means of one half, and resamples come from the other.

    No point is fitted to the resamples' half.
    """
    first = torch.zeros(len(cell.x), dtype=torch.bool)
    first[choose(SEED, Purpose.BOOTSTRAP, len(cell.x), (len(cell.x) + 1) // 2)] = True
    return cell.part(first), cell.part(~first)


def resamples(cell: Cell, points: Tensor, weights: Tensor, norm: float, draws: int) -> tuple[Resample, ...]:
    """Return the largest distance of ``draws`` resamples to the points, for each number of examples.

    Resamples imitate new examples from the unknown distribution behind these: each draw first weighs these at
    random (the Bayesian bootstrap, Rubin 1981), so that the mean of n draws varies as ``1 / n + 1 / len(cell)``.
    """
    cost, random = _costs(cell.x, points, norm), np.random.default_rng(SEED)
    farthest: list[Resample] = []
    for size in SIZES:
        if size > 2 * len(cell.x):
            break
        squares = [0.0]
        for _ in range(draws):
            counts = random.multinomial(size, random.dirichlet(len(cell.x) * cell.share.numpy()))
            rows = counts.nonzero()[0]
            squares.append(network_simplex(torch.from_numpy(counts[rows] / size), weights, cost[rows].numpy())[1])
        farthest.append(Resample(size, math.sqrt(max(squares))))
    return tuple(farthest)


def gammas_for(slope: float, radii: Sequence[float]) -> tuple[float, ...]:
    """Return the gammas of the published surrogates: from ten times the largest radius's to the smallest's.

    Labels may be farther than any radius.
    """
    asked = [radius for radius in radii if radius > 0] or [1.0]
    if not slope > 0:
        return ()
    least = slope / (FARTHEST * max(asked))
    most = max(slope / min(asked), 2.0 * least)
    return tuple(least * (most / least) ** (step / (GAMMAS - 1)) for step in range(GAMMAS))


def publish_labels(
    model: Known, ball: Ball, examples: Examples, weights: Sequence[float], radii: Sequence[float], points: int
) -> Labels:
    """Return the published facts of all labels, with a margin for rounding on other machines."""
    gammas = gammas_for(steepest_slope(model, ball, math.prod(examples.shape)), radii)
    cells = cells_of(examples, weights)
    chosen = {label: centers(halves(cell)[0], points) for label, (cell, _, _) in cells.items()}
    return described(model, ball, examples, weights, gammas, chosen, 1.0 + AGREE)


def described(
    model: Known,
    ball: Ball,
    examples: Examples,
    weights: Sequence[float],
    gammas: Sequence[float],
    points: Mapping[int, Tensor],
    room: float = 1.0,
) -> Labels:
    """Return the facts that follow from the examples once the points are chosen."""
    cells, labels = cells_of(examples, weights), list[Label]()
    for label, (cell, share, rows) in cells.items():
        asked = (None, *gammas)
        parts = [
            surrogates(model, ball, examples.rows(part, torch.float64), examples.y[part], asked)
            for part in rows.split(CHUNK)
        ]
        loss, *phi = ((torch.cat(parts, 1) @ cell.share) * room).tolist()
        at, (weight, spread) = points[label], quantize(cell, points[label], ball.norm)
        where = tuple(map(tuple, at.tolist())), tuple(weight.tolist()), spread
        again = resamples(halves(cell)[1], at, weight, ball.norm, RESAMPLES * len(cells) - 1)
        labels.append(Label(label, share, len(cell.x), *where, loss, tuple(phi), again))
    return Labels(tuple(gammas), tuple(labels))


def differences(labels: Labels, model: Known, ball: Ball, examples: Examples, weights: Sequence[float]) -> str | None:
    """Return the published facts that do not follow from the points and the examples; None if all do."""
    cells = cells_of(examples, weights)
    points = {each.label: torch.tensor(each.points, dtype=torch.float64) for each in labels.labels}
    inputs = math.prod(examples.shape)
    if cells.keys() != points.keys() or any(each.shape[1] != inputs for each in points.values()):
        return "its labels, or the number of their inputs, differ from the data"
    now = {each.label: each for each in described(model, ball, examples, weights, labels.gammas, points).labels}
    for then in labels.labels:
        # The size of the examples, not of the points: a far point without examples would allow any number.
        here, scale = now[then.label], float(cells[then.label][0].x.abs().max())
        (sizes, far), (sizes_here, far_here) = (
            ([drawn.examples for drawn in each.resamples], [drawn.distance for drawn in each.resamples])
            for each in (then, here)
        )
        if (then.examples, sizes) != (here.examples, sizes_here):
            return f"label {then.label}: its numbers of examples are others"
        shares = zip((then.share, *then.weights), (here.share, *here.weights), strict=True)
        lengths = zip((then.spread, *far), (here.spread, *far_here), strict=True)
        off = [abs(a - b) / max(1.0, b) for a, b in shares]
        off += [abs(a - b) / max(scale, b, 1e-300) for a, b in lengths]
        if not max(off) <= AGREE:
            return f"label {then.label}: numbers differ by up to {max(off):.2g}"
        for a, b in zip((then.loss, *then.surrogates), (here.loss, *here.surrogates), strict=True):
            if not a >= b:
                return f"label {then.label}: {a:.6g} is published where {b:.6g} is proven"
    return None


def certified_loss(label: Label, gammas: Sequence[float], slope: float, radius: float) -> float:
    """Return ``c_k(rho)``: the smallest bound over the published gammas, or the slope's bound if it is smaller."""
    by_duality = [gamma * radius**2 + value for gamma, value in zip(gammas, label.surrogates, strict=True)]
    return min([*by_duality, label.loss + slope * radius])
