"""Audit a prospective site: how far its data are from a federation's, label by label, and the certified loss there.

Labels do not move, and a site has label shares ``pi_k``. So each label has a separate ball: if the site's examples of
label k are within ``rho_k`` (W_2) of the federation's, their expected loss is at most
``c_k(rho_k) = min over gamma of gamma rho_k^2 + E[phi_gamma | k]``, and the site's is at most
``sum_k pi_k c_k(rho_k)``. The published points of the federation (:mod:`wafl.promises.published_labels`) bound
``rho_k`` by the triangle inequality: the site's distance to the published points, plus the spread of the federation's
examples around them. Nothing leaves the site.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from wafl.base.describe import rounded_up
from wafl.base.errors import PreconditionError
from wafl.base.norms import power_norm
from wafl.base.random import Purpose, choose
from wafl.data.federation import Federation
from wafl.promises.checker import ball_of
from wafl.promises.known import known
from wafl.promises.promise import digest_of
from wafl.promises.published_labels import Cell, cells_of, certified_loss, distance
from wafl.promises.quantities import steepest_slope
from wafl.promises.read import read_file
from wafl.promises.verify import module_and_loss
from wafl.results.run import Run
from wafl.tasks.task import Loss
from wafl.weights.transport.costs import transport_package

POWER_DRAWS = 100
"""The number of moved draws of a site's examples that estimate how often a shift is noticed."""


@dataclass(frozen=True)
class LabelAudit:
    """One label of a site: its share and number of examples, its distance, and the certified and measured loss.

    ``resample`` bounds the distance of the same number of new examples of the federation itself, with probability ``1 -
    0.05 / labels`` (Bonferroni): sampling alone makes distances large in many dimensions. ``inside`` is True if the
    site is no farther away, so a site like the federation has a label outside with probability at most 0.05, for any
    number of labels. ``power`` is the probability that a shift of the audit's size would have been noticed. None means
    that the label has too few examples to tell. If the site has more examples than any resample, ``compared`` is the
    distance of an equal number of its examples.
    """

    label: int
    share: float
    examples: int
    distance: float
    compared: float
    resample: float | None
    power: float | None
    certified: float
    measured: float

    @property
    def inside(self) -> bool | None:
        """Whether the site is no farther away than a resample; None if there are too few examples to tell."""
        return None if self.resample is None else self.compared <= self.resample


@dataclass(frozen=True)
class Audit:
    """The audit of a site: ``certified`` is at least its expected loss, ``measured`` its mean loss.

    ``shift`` is the size of the shift that each label's ``power`` is about.
    """

    labels: tuple[LabelAudit, ...]
    norm: str
    unit: str
    shift: float

    @property
    def certified(self) -> float:
        """The bound on the site's expected loss."""
        return math.fsum(each.share * each.certified for each in self.labels)

    @property
    def measured(self) -> float:
        """The site's mean loss."""
        return math.fsum(each.share * each.measured for each in self.labels)

    def __str__(self) -> str:
        total = f"all: at most {rounded_up(self.certified)}, here {self.measured:.4f}"
        return "\n".join([*map(self._line, self.labels), total])

    def _line(self, each: LabelAudit) -> str:
        loss = f"at most {rounded_up(each.certified)}, here {each.measured:.4f}"
        line = f"label {each.label}: {each.distance:.4g} away, {loss}"
        if each.resample is None:
            return f"{line}; too few examples to tell"
        inside = "inside" if each.inside else "outside"
        shift = f"a shift of {self.shift:g} would have been noticed with probability {each.power:.2f}"
        return f"{line}; {inside}, as a resample is {each.resample:.4g} away; {shift}"


def audit(
    file: str | os.PathLike[str],
    model: Run | nn.Module,
    data: Federation,
    *,
    shift: float | None = None,
    loss: Loss | None = None,
    seed: int = 0,
) -> Audit:
    """Measure the distance of a site's data from a certificate's data, label by label, and bound the site's loss.

    Whether a label is inside is a test, with false alarms in at most 5% of the sites that are like the federation.
    Check the certificate itself with :func:`wafl.verify` first.

    Args:
        file: a certificate that was issued with ``points``, which describe each label's examples.
        model: the certified model.
        data: the site's examples, with labels; all clients in it together are the site.
        shift: the size of a shift of all examples of a label, for which the audit reports the probability of being
            noticed; by default the largest radius of the certificate.
        loss: the loss, if it is a custom one.
        seed: the seed of the draws behind that probability.
    """
    transport_package()
    path = Path(file)
    parts = read_file(path)[0].parts
    if parts.labels is None:
        raise ValueError(f"{path} does not describe its labels' examples: ask for a certificate made with --points 16")
    module, known_loss = module_and_loss(model, loss)
    if digest_of(module, parts.format) != parts.claim.model:
        raise ValueError(
            f"{path} is about a different model, or comes from a different version of torch: pass the certified model"
        )
    proof, inputs = known(module, known_loss), math.prod(data.input_shape)
    if proof is None:
        raise PreconditionError("no proof is known for this model and loss, so nothing can be certified with it")
    if {len(point) for each in parts.labels.labels for point in each.points} != {inputs}:
        raise ValueError(f"the examples have {inputs} inputs, and the certificate's points do not")
    ball, whole = ball_of(parts.claim), data.examples
    slope, published = steepest_slope(proof, ball, inputs), {each.label: each for each in parts.labels.labels}
    moved = max(row.radius for row in parts.claim.rows) if shift is None else shift
    if not (moved >= 0.0 and math.isfinite(moved)):
        raise ValueError(f"shift={moved} must be finite and at least 0, in the unit of the data")
    sizes = whole.num_examples.tolist()
    audits: list[LabelAudit] = []
    for label, (cell, share, rows) in cells_of(whole, [size / sum(sizes) for size in sizes]).items():
        outputs = proof.plain(whole.rows(rows, torch.float64))
        about = (label, share, len(cell.x))
        measured = float(proof.loss.value(outputs, whole.y[rows]) @ cell.share)
        if label not in published:
            audits.append(LabelAudit(*about, math.inf, math.inf, None, None, math.inf, measured))
            continue
        entry = published[label]
        points, weights = (torch.tensor(each, dtype=torch.float64) for each in (entry.points, entry.weights))
        far, compared, power = distance(cell.x, cell.share, points, weights, ball.norm), math.inf, None
        limit = _limit({each.examples: each.distance for each in entry.resamples}, len(cell.x))
        if limit is not None:
            size, bar = limit
            some = cell.part(torch.tensor(choose(seed, Purpose.BOOTSTRAP, len(cell.x), size)))
            compared = far if size == len(cell.x) else distance(some.x, some.share, points, weights, ball.norm)
            power = _power(cell, points, weights, ball.norm, size, bar, moved, seed)
        certified = certified_loss(entry, parts.labels.gammas, slope, far + entry.spread)
        resample = None if limit is None else limit[1] + entry.spread
        tested = (far + entry.spread, compared + entry.spread, resample, power)
        audits.append(LabelAudit(*about, *tested, certified, measured))
    return Audit(tuple(audits), parts.claim.norm, data.unit, moved)


def _limit(resamples: Mapping[int, float], size: int) -> tuple[int, float] | None:
    """Return how many of the site's examples to compare, and the resample's distance; None if there are too few.

    Between two published sizes n, the square is interpolated in ``1 / sqrt(n)``, as means of n examples vary.
    """
    sizes = sorted(resamples)
    if not sizes or size < sizes[0]:
        return None
    size = min(size, sizes[-1])
    above = next(each for each in sizes if each >= size)
    below = max(each for each in sizes if each <= size)
    if above == below:
        return size, resamples[size]
    share = (below**-0.5 - size**-0.5) / (below**-0.5 - above**-0.5)
    return size, math.sqrt((1.0 - share) * resamples[below] ** 2 + share * resamples[above] ** 2)


def _power(
    cell: Cell, points: Tensor, weights: Tensor, norm: float, size: int, bar: float, shift: float, seed: int
) -> float:
    """Return how often draws of the site's examples exceed the bar if all move, in a random direction, by the shift.

    They are first moved to the mean of the federation, so that an existing shift does not count.
    """
    random = torch.Generator().manual_seed(seed)
    home, noticed = cell.x - cell.share @ cell.x + weights @ points, 0
    for _ in range(POWER_DRAWS):
        rows = torch.multinomial(cell.share, size, replacement=True, generator=random)
        step = torch.randn(home.shape[1], generator=random, dtype=home.dtype)
        step *= shift / float(power_norm(step, norm, 1))
        drawn = distance(home[rows] + step, torch.full((size,), 1.0 / size, dtype=home.dtype), points, weights, norm)
        noticed += drawn > bar
    return noticed / POWER_DRAWS
