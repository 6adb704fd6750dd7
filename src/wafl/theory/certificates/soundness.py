"""Add the possible effect of rounding to bounds, and check them against losses that were reached.

Clients report bounds on phi_gamma that hold for any evaluation of the model at their examples (``upper.py``). Two
parts are added here. **Moves**: if examples move by 1, the error of each output grows by at most its *drift*
(:mod:`wafl.theory.networks.rounding`), and the cross-entropy is off by at most twice the error of an output. Within the
ball the mean distance is at most the radius, so the mean loss grows by at most ``2 drift radius``. For a squared error
``a ||s - y||^2``, the root of the mean grows by at most ``sqrt(a) ||drift|| radius`` (Minkowski's inequality).

**Means** over n examples of m clients, the norms of the layers and the last steps of a search: a few units of the bound
for each of ``n + m`` and for each term of the model's sums. In float32, each **loss** of C classes is off by at most
``(C + 32) u`` of itself, and by ``(C + 2) u`` for the sum of exponentials, with the unit roundoff u.

The distributions in the ball must not overflow: a point so far away that its outputs are not finite has no loss.
A bound below a loss that was reached is then a mistake in wafl, or a claim of the user that is false.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from wafl.base.errors import PreconditionError, UnsoundError
from wafl.base.norms import norm_name
from wafl.tasks.losses import MarginLoss
from wafl.tasks.task import Task
from wafl.theory.certificates.certificate import Certificate, Certificates, Quantity
from wafl.theory.certificates.mixture import AskMeans, Mixture
from wafl.theory.certificates.sampling import Sample
from wafl.theory.certificates.upper import Inquiry, SlopeMove
from wafl.theory.networks.rounding import ARITHMETIC, Dtype, rounding_of

Room = Callable[[float, float], float]
"""The possible effect of rounding on a bound, as a function of the radius and the bound."""
PARTS = (1.0, 1.0 / 8.0, 1.0 / 64.0)
"""The distances that examples are moved, relative to the radius."""
UNIT = 2.0**-53
TERMS = 128
"""The number of roundings, not counting means and the model."""
CLAIMED = 1e-6
"""How much a loss must exceed a bound that rests on a claim to refute the claim, relative to the bound or to 1."""
CURVATURE = "curvature= declares it"
"""Why a bound on the curvature is attested if it is an argument and does not follow from a loss's traits."""
NOTICED = 1e-9
"""Losses below this value never raise an error for rounding, even if rounding dominates them."""


def room_of(
    quantity: Quantity,
    task: Task,
    params: Tensor,
    shape: Sequence[int],
    norm: float,
    dtype: Dtype,
    count: int,
) -> Room:
    """Return the possible effect of rounding on a quantity's mean over ``count`` moving examples of this shape."""
    rounding, factor = rounding_of(task, params), task.loss.quadratic
    relative = 8.0 * UNIT * (count + TERMS + (0 if rounding is None else rounding.terms))
    if not quantity.has_slopes:  # clients know how far examples must move to become errors
        return lambda radius, bound: relative * abs(bound)
    if rounding is None or not (factor is not None or task.loss.logistic or isinstance(task.loss, MarginLoss)):
        return lambda radius, bound: 0.0  # an estimate
    drift, least = rounding.growth(shape, norm, dtype, params), 0.0
    length, largest = float(drift.norm()), float(drift.max())
    if dtype == "float32":
        unit, temperature = ARITHMETIC[dtype].unit, getattr(task.loss, "temperature", 1.0)
        relative += (rounding.classes + 32) * unit
        least = (rounding.classes + 2) * unit * temperature

    def room(radius: float, bound: float) -> float:
        if math.isinf(bound):
            return 0.0
        if factor is None:
            return 2.0 * largest * radius + relative * abs(bound) + least
        root = math.sqrt(factor) * length * radius
        return root * (2.0 * math.sqrt(max(bound, 0.0)) + root) + relative * abs(bound)

    return room


def with_room(row: Certificate, room: Room, largest: float) -> Certificate:
    """Return the row with room for rounding in each bound on a quantity with a ``largest`` value."""
    value, simple = (min(bound + room(row.radius, bound), largest) for bound in (row.value, row.simple))
    return replace(row, value=value, simple=simple)


def check_room(certificates: Certificates, rest: float, room: Room, dtype: Dtype) -> None:
    """Raise PreconditionError if rounding dominates a bound.

    In float64, rounding must not be more than half of the bound. In float32, it must not be more than what the radius
    adds to the loss. ``rest`` bounds the loss at radius 0, and ``certificates`` do not include the room yet.
    """
    if not certificates.certifies:
        return
    for row in certificates.rows:
        best = certificates.best_proven(row)
        added = room(row.radius, best)
        lost = rest - certificates.loss + added
        limit, what = max((best + added) / 2.0, NOTICED), "half of the bound"
        if dtype == "float32" and row.radius > 0:
            limit, what = best - rest, "what the radius adds to the loss"
        if not lost <= limit and math.isfinite(best):
            raise PreconditionError(
                f"{_where(certificates, row)}: rounding in {dtype} may change the loss by {lost:.4g}, more than {what} "
                f"({limit:.4g}): rescale the data, use smaller weights"
                + (", a larger radius or dtype='float64'" if dtype == "float32" else "")
            )


def hold(where: str, bound: float, reached: float, claim: str = "") -> None:
    """Raise unless the bound is at least the reached loss; NaN, from a failed search, reached nothing.

    A bound that rests on a user's ``claim`` raises ValueError, and only if the reached loss is clearly above it.

    >>> hold("radius 1", 2.0, 1.5)
    """
    room = CLAIMED * max(abs(bound), 1.0) if claim else 0.0
    if math.isnan(reached) or reached <= bound + room:
        return
    if claim:
        raise ValueError(
            f"{where}: {claim} is false. It implies an expected loss of at most {bound:.8g}, but {reached:.8g} was "
            f"reached: leave it out, or pass a larger value"
        )
    raise UnsoundError(
        f"{where}: {bound:.8g} was found as a bound on the expected loss, but {reached:.8g} was reached. This is a "
        "mistake in wafl, and no certificate of this model can be trusted: please report it, with the model and these "
        "numbers"
    )


def hold_rows(certificates: Certificates) -> Certificates:
    """Check each proven certificate against the loss at rest and the reached loss, and return them.

    A proven value also limits the reached loss.
    """
    for row in certificates.rows:
        for reached in (certificates.loss, row.achieved):
            if reached is not None:
                _hold_row(certificates, row, reached, reached)
    return replace(certificates, rows=tuple(map(_clipped, certificates.rows))) if certificates.proven else certificates


def _hold_row(certificates: Certificates, row: Certificate, reached: float, inside: float) -> None:
    """Raise if a proven or claimed bound is below the reached loss; the bound by the slope, if below ``inside``."""
    where = _where(certificates, row)
    if certificates.simple_proven:
        hold(where, row.simple, inside)
    if certificates.proven:
        hold(where, row.value, reached)
    elif certificates.L_zz.kind == "attested" and row.tolerance is None and certificates.power == 2:
        hold(where, row.value, reached, claim=_claim(certificates))


def _claim(certificates: Certificates) -> str:
    """Return the claim that an attested bound on the curvature rests on."""
    bent = certificates.L_zz
    return f"curvature={float(bent):g}" if bent.why == CURVATURE else f"L_zz={float(bent):g} ({bent.why})"


def hold_moved(certificates: Certificates, means: AskMeans) -> None:
    """Raise if examples that all move equally far reach more than the proven bound of a network.

    Examples that reach the mean loss l at the mean cost c show that ``E[phi_gamma] >= l - gamma c`` at every gamma.
    """
    rows = [row for row in certificates.rows if row.radius > 0]
    if not rows or not (certificates.certifies or certificates.L_zz.kind == "attested"):
        return
    asked = [{"distance": part * row.radius} for row in rows for part in PARTS]
    moved = means(SlopeMove(certificates.norm), asked)
    for loss, cost in zip(moved.value, moved.cost, strict=True):
        _hold_reached(certificates, rows, loss, cost, 2)


def hold_flipped(certificates: Certificates, means: AskMeans) -> None:
    """Raise if examples that stay, with labels that change where that pays, reach more than the proven bound."""
    rows = [row for row in certificates.rows if row.radius > 0 and row.gamma < math.inf]
    if not rows or not (certificates.certifies or certificates.L_zz.kind == "attested"):
        return
    flipped = means(None, [{"gamma": row.gamma} for row in rows])
    for row, value, cost in zip(rows, flipped.value, flipped.cost, strict=True):
        _hold_reached(certificates, rows, value + row.gamma * cost, cost, certificates.power)


def _hold_reached(
    certificates: Certificates, rows: Sequence[Certificate], loss: float, cost: float, power: int
) -> None:
    """Raise if a mean loss that is reached at this mean cost exceeds a bound at any radius."""
    for row in rows:
        budget = row.radius**power
        # As much of the mass moves as the budget allows.
        part = 1.0 if cost <= budget else budget / cost
        inside = reached = (1.0 - part) * certificates.loss + part * loss
        if certificates.power == power and row.gamma < math.inf:
            reached = max(inside, loss + row.gamma * (budget - cost))
        _hold_row(certificates, row, reached, inside)


def hold_clients(
    certificates: Certificates,
    theirs: Mixture,
    names: Sequence[str],
    sample: Sample,
    inquiry: Inquiry,
    room: Room,
    seed: int,
) -> None:
    """Raise if a client's examples that all move by the radius reach more than the proven bound of the client."""
    radius, gamma, offset = certificates[0].radius, inquiry.gamma, inquiry.offset
    moved = theirs.answers(SlopeMove(certificates.norm), [{"distance": radius}], seed)
    numbers = zip(names, sample.means, moved.value[0].tolist(), moved.cost[0].tolist(), strict=True)
    for name, mean, value, cost in numbers:
        bound, reached = offset + mean, offset + min(value - gamma * cost, sample.most)
        hold(f"{name}, at gamma {gamma:.4g}", bound + room(radius, bound), reached)


def _where(certificates: Certificates, row: Certificate) -> str:
    return f"radius {row.radius:g} ({norm_name(certificates.norm)}, W_{certificates.power}), at gamma {row.gamma:.4g}"


def _clipped(row: Certificate) -> Certificate:
    return row if row.achieved is None else replace(row, achieved=min(row.achieved, row.value))
