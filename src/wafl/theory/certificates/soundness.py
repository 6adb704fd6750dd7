"""Check bounds against losses that were reached: a bound below one of them, but for rounding, is a bug in wafl.

A sum of n products is off by at most ``n u`` times the sum of their sizes (Higham, Accuracy and Stability of Numerical
Algorithms, section 3.1), with ``u = 2^-53``. So each output of a linear model, ``s_j = <w_j, x> + b_j``, is off by at
most ``(d + 1) u`` times ``|w_j| |x| + |b_j|``, whose largest value over the examples is their *magnitude*. The
cross-entropy is off by at most twice as much, because ``logsumexp`` and ``s_y`` are 1-Lipschitz in the outputs; for the
squared error, the magnitude is the square. Means over n examples of m clients add ``n + m`` roundings of the value.
Moved examples have outputs larger by ``||w_j||_* ||x' - x||``, where the move is ``radius`` in the root mean square.
The room for rounding is four times all of this. For networks the magnitude is that of the outputs alone: their room is
usual practice, not a proof.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from wafl.base.errors import UnsoundError
from wafl.base.norms import dual, norm_name, power_norm
from wafl.theory.certificates.certificate import Certificate, Certificates
from wafl.theory.certificates.mixture import AskMeans, Mixture
from wafl.theory.certificates.sampling import Sample
from wafl.theory.certificates.upper import Inquiry, SlopeMove

Room = Callable[[float, float], float]
"""What float64 may have lost at a radius, of a bound."""
PARTS = (1.0, 1.0 / 8.0, 1.0 / 64.0)
"""How far examples are moved, relative to the radius."""
CHUNK = 2048
UNIT = 2.0**-53
RELATIVE = 1e-9
"""What a mean over many examples and the moves of an ascent may lose of a number, relative to it."""


def hold(where: str, bound: float, reached: float, room: Callable[[], float]) -> None:
    """Raise unless the bound is at least what was reached, but for rounding; a search that ended in no number is none.

    >>> hold("radius 1", 2.0, 1.5, room=lambda: 0.0)
    """
    if math.isnan(reached) or reached <= bound or reached <= bound + room():
        return
    raise UnsoundError(
        f"{where}: {bound:.8g} was found as a bound on the expected loss, but {reached:.8g} was reached. This is a "
        "mistake in wafl, and no certificate of this model can be trusted: please report it, with the model and these "
        "numbers"
    )


def hold_rows(certificates: Certificates, room: Room) -> Certificates:
    """The certificates, if each proven one is at least the loss at rest and what was reached, which it then limits."""
    for row in certificates.rows:
        for bound, proven in ((row.value, certificates.proven), (row.simple, certificates.simple_proven)):
            for reached in (certificates.loss, row.achieved):
                if proven and reached is not None:
                    hold(_where(certificates, row), bound, reached, partial(room, row.radius, bound))
    return replace(certificates, rows=tuple(map(_clipped, certificates.rows))) if certificates.proven else certificates


def hold_moved(certificates: Certificates, means: AskMeans, room: Room) -> None:
    """Raise if examples that all move equally far reach more than what is proven of a network.

    Examples that reach the mean loss l at the mean cost c show that ``E[phi_gamma] >= l - gamma c`` at every gamma.
    """
    rows = [row for row in certificates.rows if row.radius > 0]
    if not rows or not (certificates.proven or certificates.simple_proven):
        return
    asked = [{"distance": part * row.radius} for row in rows for part in PARTS]
    moved = means(SlopeMove(certificates.norm), asked)
    for loss, cost in zip(moved.value, moved.cost, strict=True):
        _hold_reached(certificates, rows, loss, cost, 2, room)


def hold_flipped(certificates: Certificates, means: AskMeans, room: Room) -> None:
    """Raise if examples that stay, and whose labels change where that pays, reach more than what is proven."""
    rows = [row for row in certificates.rows if row.radius > 0 and row.gamma < math.inf]
    if not rows or not (certificates.proven or certificates.simple_proven):
        return
    flipped = means(None, [{"gamma": row.gamma} for row in rows])
    for row, value, cost in zip(rows, flipped.value, flipped.cost, strict=True):
        _hold_reached(certificates, rows, value + row.gamma * cost, cost, certificates.power, room)


def _hold_reached(
    certificates: Certificates, rows: Sequence[Certificate], loss: float, cost: float, power: int, room: Room
) -> None:
    """Raise if a mean loss that is reached at this mean cost is more than what is proven at any radius."""
    for row in rows:
        budget = row.radius**power
        # Of all mass as much moves as the budget allows.
        part = 1.0 if cost <= budget else budget / cost
        inside = (1.0 - part) * certificates.loss + part * loss
        if certificates.simple_proven:
            hold(_where(certificates, row), row.simple, inside, partial(room, row.radius, row.simple))
        if certificates.proven and certificates.power == power and row.gamma < math.inf:
            reached = max(inside, loss + row.gamma * (budget - cost))
            hold(_where(certificates, row), row.value, reached, partial(room, row.radius, row.value))


def hold_clients(
    certificates: Certificates, theirs: Mixture, names: Sequence[str], sample: Sample, inquiry: Inquiry, seed: int
) -> None:
    """Raise if a client's examples that all move by the radius reach more than what is proven of the client."""
    radius, gamma, offset, room = certificates[0].radius, inquiry.gamma, inquiry.offset, room_of(theirs, certificates)
    moved = theirs.answers(SlopeMove(certificates.norm), [{"distance": radius}], seed)
    numbers = zip(names, sample.means, moved.value[0].tolist(), moved.cost[0].tolist(), strict=True)
    for name, mean, value, cost in numbers:
        bound, reached = offset + mean, offset + min(value - gamma * cost, sample.most)
        hold(f"{name}, at gamma {gamma:.4g}", bound, reached, partial(room, radius, bound))


def room_of(mixture: Mixture, certificates: Certificates) -> Room:
    """Return a function of a radius and a bound: how much of the bound float64 may have lost on a mixture."""
    task, params, sizes = mixture.task, mixture.params, mixture.examples.num_examples.tolist()
    layer = task.linear(params[None])

    def room(radius: float, bound: float) -> float:
        magnitude, reach = _magnitude(mixture), 0.0
        if layer is not None and radius > 0:
            reach = radius * float(power_norm(layer[0][0], dual(certificates.norm), 1).max())
            reach = reach * (reach + 2.0 * math.sqrt(magnitude)) if task.loss.quadratic is not None else reach
        summed = len(params) if layer is None else layer[0].shape[-1]
        lost = 4.0 * (summed + max(sizes) + len(sizes) + 64) * UNIT * (magnitude + reach + abs(bound))
        if layer is None and certificates.L_z.proven:
            # Inside of a network, numbers may be larger than its outputs: at most as the layers make of the inputs.
            x = mixture.population().x[0].flatten(1)
            lost += 64.0 * UNIT * x.shape[1] * float(certificates.L_z) * float(x.abs().max())
        return lost + RELATIVE * abs(bound)

    return room


def _magnitude(mixture: Mixture) -> float:
    """Return the largest size of the terms of an output over all examples; its square for a squared error."""
    task, params, examples, largest = mixture.task, mixture.params, mixture.examples, 0.0
    layer = task.linear(params[None])
    for rows in torch.arange(len(examples.y)).split(CHUNK):
        x, y = examples.rows(rows, torch.float64), examples.y[rows]
        if layer is not None:
            sizes = x.flatten(1).abs() @ layer[0][0].abs().T + layer[1][0].abs()
        else:
            sizes = task.outputs(params[None], x[None])[0].detach().abs()
        if y.is_floating_point():
            sizes = (sizes + y.view(len(y), -1).abs()).square()
        largest = max(largest, float(sizes.max()))
    return largest


def _where(certificates: Certificates, row: Certificate) -> str:
    return f"radius {row.radius:g} ({norm_name(certificates.norm)}, W_{certificates.power}), at gamma {row.gamma:.4g}"


def _clipped(row: Certificate) -> Certificate:
    return row if row.achieved is None else replace(row, achieved=min(row.achieved, row.value))


def room_elsewhere(radius: float, bound: float) -> float:
    """How much of a bound float64 may have lost on examples that are elsewhere, whose size is not known here."""
    return 1e-6 * max(abs(bound), 1.0)
