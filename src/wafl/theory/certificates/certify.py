"""Compute upper bounds on the worst loss inside the ball: certificates that clients compute together.

By duality (the paper's duality equation), no distribution within ``radius`` of the clients' mixture has a larger
expected loss than ``gamma radius^2 + sum_i lambda_i E[phi_gamma]``, for any gamma. A certificate is the minimum of this
over gamma. For each gamma, each client sends two means over its examples: of a bound on phi_gamma, and of the cost of
the examples' moves, which is the slope in gamma.

For linear models phi_gamma is bounded from both sides (``linear_model.py``). The search for gamma follows the values
that an ascent reaches, which also gives a distribution inside the ball. The value is then proven at the final gammas.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Literal

from torch import Tensor, nn

from wafl.attacks import WassersteinShift
from wafl.base.bounds import warn_of_size
from wafl.base.checks import check_radii, check_seed, check_space
from wafl.base.errors import PreconditionError
from wafl.base.norms import check_norm
from wafl.base.options import Choice, NotNegative, Positive, Range
from wafl.base.shown import shows
from wafl.data.arguments import check_arguments
from wafl.data.federation import Federation
from wafl.promises import quantities
from wafl.promises.promise import digest_of
from wafl.promises.verify import module_and_loss
from wafl.results.run import Run
from wafl.tasks.task import Loss, Task
from wafl.theory.certificates import other_spaces as elsewhere
from wafl.theory.certificates.certificate import Certificate, Certificates, Metric, Quantity, Question, Reach
from wafl.theory.certificates.mixture import Asked, AskMeans, Mixture, check_label_cost, with_labels
from wafl.theory.certificates.publish import Source
from wafl.theory.certificates.quantities import ErrorRate, ExpectedLoss
from wafl.theory.certificates.reached import worst_moves
from wafl.theory.certificates.sampling import Domain, Moments
from wafl.theory.certificates.soundness import (
    CURVATURE,
    Room,
    check_room,
    hold_flipped,
    hold_moved,
    hold_rows,
    room_of,
    with_room,
)
from wafl.theory.constants.assumptions import as_claimed, data_free_constants, input_constants
from wafl.theory.constants.constant import Constant
from wafl.theory.constants.layer_by_layer import last_layer, why_unproven
from wafl.theory.networks.rounding import ARITHMETIC, Dtype, check_stored
from wafl.theory.phi.linear_model import LinearPhi, is_known
from wafl.train.embedded import find_device
from wafl.weights import ClientWeights, fixed

QUANTITIES: dict[str, Quantity] = {each.metric: each for each in (ExpectedLoss(), ErrorRate())}
UNNEEDED = Constant(math.inf, "bound", "not known by layers, and not needed along the margins")


@shows("certify")
def certify(
    model: Run | nn.Module,
    clients: Federation,
    *,
    radii: Sequence[float],
    norm: float = 2,
    power: int = 2,
    metric: Metric = "loss",
    gap: float = 0.02,
    split: Literal["train", "test"] = "train",
    client_weights: ClientWeights | None = None,
    curvature: float | None = None,
    dtype: Dtype = "float64",
    achieved: bool = True,
    confidence: float | None = None,
    space: str | None = None,
    cost_matrix: Any = None,
    label_cost: float = math.inf,
    loss: Loss | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: bool | None = None,
) -> Certificates:
    """Bound the expected loss under every distribution within each radius of the clients' mixture.

    The mixture consists of the clients' examples or, with a ``confidence``, of the distributions from which the
    clients' test examples were drawn. Labels stay fixed unless they have a ``label_cost``. The ball is unbounded: its
    distributions may leave the box of the data, and the certificate also holds for those inside the box.

    For linear models with cross-entropy or squared error the certificate is tight. For networks it is proven if their
    layers are known, and looser; otherwise it is an estimate, and ``proven`` is False. Everything is computed in
    float64. A proven certificate includes rounding: it holds for the exact loss of the weights as float64 numbers, and
    for the loss that a float64 evaluation computes in any order. PreconditionError is raised if rounding is more than
    half of the bound. Its ``save`` method writes a file that anyone can check with :func:`wafl.verify`.

    See Also:
        :func:`wafl.next_client`, :func:`wafl.calibrate`, :func:`wafl.verify`

    Args:
        model: a model, or a run, which brings its loss and client weights.
        clients: the federation with the examples.
        radii: the radii, in the unit of the data; at least one.
        norm: the ground norm, 1, 2 or inf.
        power: the order of the ball, 1 or 2. For 1, the worst loss of a linear model with cross-entropy is exactly
            ``E[loss] + L_z radius``, approached as a little mass moves ever farther.
        metric: ``"loss"``, or ``"error"``: the share of examples for which some other class has at least the label's
            output. It is exact for linear classifiers, and an upper bound for networks with known layers (useful for
            :func:`wafl.models.lipschitz`) or with an attribute ``lipschitz = ...``.
        gap: the allowed gap between a linear model's certificate and the achieved loss, relative to the latter. A
            smaller gap takes longer. The search stops early for models in which all classes compete; in l_inf, the
            measured gaps were up to 3%.
        split: ``"train"`` or ``"test"`` examples.
        client_weights: the center of the ball; by default the run's final weights, or by examples for a plain model.
        curvature: a bound on L_zz, for a model and a loss for which none is known; otherwise it is not used. A value
            that rests on it is attested, not proven; ValueError if an attack shows that it is false.
        dtype: ``"float32"`` to include the rounding of each example's loss in float32 (without TF32 and Winograd),
            anywhere in the ball. PreconditionError is raised if that is more than the radius adds to the loss.
        achieved: whether to also report the loss of a bad distribution inside each ball. For networks, this needs all
            examples on one machine.
        confidence: the probability with which all radii hold for the clients' distributions. It needs ``split="test"``,
            a model that never saw these examples and, for the loss, data with bounds. Gamma is then chosen on the
            training examples.
        space: the name of a layer: the ball and the radii are then in the space of its output. The layers before it may
            be anything; the certificate is proven if proofs exist for the layers after it, such as a linear head.
        cost_matrix: the matrix A of a ground cost ``||A^-1 (x' - x)||``, one number per feature for a diagonal A, or
            ``"clients"``, as in :class:`wafl.objectives.Wasserstein`.
        label_cost: the price kappa at which labels in the ball may change: a move costs
            ``||x' - x||^power + kappa 1(y' != y)``, with squared error ``||x' - x||^2 + kappa ||y' - y||^2``.
            For a network, ``achieved`` still uses moves that keep labels.
        loss: the loss to use instead of the run's loss; cross-entropy for a plain model.
        seed: the seed of the objective.
        device: the device of the search, ``"cpu"`` or ``"cuda"``.
        progress: whether to show progress; by default on a terminal and in notebooks.

    >>> import wafl
    >>> clients = wafl.load_dataset("digits").partition(num_clients=4, iid=True)
    >>> run = wafl.fit(wafl.models.mlr(clients), clients, wafl.WAFL(gamma=1.0), rounds=2, local_epochs=1)
    >>> row = certify(run, clients, radii=[0.5])[0]
    >>> row.achieved <= row.value <= min(row.simple, 1.02 * row.achieved)
    True
    """
    check_arguments("certify(model, clients, radii=[...])", model, clients)
    check_norm(norm)
    check_seed(seed)
    wanted = check_radii(radii)
    find_device(device)
    if curvature is not None:
        NotNegative.check("curvature", curvature)
    Positive("; inf keeps labels fixed", infinite=True).check("label_cost", label_cost)
    if dtype not in ARITHMETIC:
        raise ValueError(f"{dtype=} must be one of {', '.join(map(repr, ARITHMETIC))}")
    quantity = quantity_of(metric)
    check_question(power, gap)
    if confidence is not None:
        check_confidence(confidence, split)
    if space is None and cost_matrix is None and math.isinf(label_cost):
        warn_of_size("radius", max(wanted), norm, clients.bounds, math.prod(clients.input_shape), clients.unit)
    if space is not None or cost_matrix is not None:
        check_space(space, None)
        if isinstance(model, Run):
            loss, client_weights = loss or model.loss, client_weights or fixed(model.client_weights.tolist())
        model, clients = elsewhere.moved(model, clients, space, cost_matrix, loss)
    if dtype == "float32":
        check_stored(model.module if isinstance(model, Run) else model)
    mixture = replace(Mixture.of(model, clients, split, client_weights, loss), device=device)
    others = {"space": space, "cost_matrix": cost_matrix, "label_cost": None if math.isinf(label_cost) else label_cost}
    others["dtype"] = None if dtype == "float64" else dtype
    inexpressible = ", ".join(name for name, value in others.items() if value is not None)
    weights = tuple(mixture.weights.tolist())
    digest = "" if inexpressible else digest_of(module_and_loss(model, loss)[0])
    source = Source(model, clients, split, weights, loss, metric, norm, power, inexpressible, digest)
    check_label_cost(label_cost, mixture.task)
    if confidence is not None and (power != 2 or math.isfinite(label_cost)):
        raise PreconditionError("a confidence is for power=2 and fixed labels: leave out power and label_cost")
    if missing := quantity.missing(mixture.task, clients.num_classes):
        raise PreconditionError(f"{metric=} {missing}")
    by_margins = quantity.by_margins(mixture.task)
    mixture.check_claim()
    known = _constants(mixture, clients, norm, quantity, by_margins)
    bent = known["L_zz"]
    if curvature is not None and not bent.proven:
        bent = Constant(curvature, "attested", CURVATURE)

    def reach(radius: float) -> float | None:
        if not (achieved and quantity.has_slopes):
            return None
        if mixture.problem.linear is None and radius > 0:
            return moves()[radius]
        return mixture.worst_loss(WassersteinShift(radius, norm=norm, steps=50, tolerance=1e-3, bounds=None), seed)

    @cache
    def moves() -> dict[float, float]:
        positive = [radius for radius in wanted if radius > 0]
        return dict(zip(positive, worst_moves(mixture, positive, norm), strict=True))

    limit = finite_above(mixture.task, mixture.params, norm)
    if limit is not None:
        limit += (mixture.task.loss.quadratic or 0.0) / label_cost
    reason = "" if known["L_z"].proven else why_unproven(mixture.task)
    if bent.why == CURVATURE and power == 2 and reason:
        reason = "its curvature is only attested (curvature=)"
    constants = known["L_z"], bent, reason, dtype
    question = Question(quantity, norm, power, gap, limit, by_margins, label_cost, clients.unit, *constants)
    about_room = (quantity, mixture.task, mixture.params, clients.input_shape, norm, dtype)
    if confidence is None:
        means = with_labels(partial(mixture.means, seed=seed), label_cost)
        room = room_of(*about_room, len(mixture.examples.y))
        result = replace(certificates_of(means, wanted, question, room, reach), source=source)
        return result if achieved else replace(result, rows=tuple(replace(row, achieved=None) for row in result.rows))
    training = replace(mixture, examples=clients.train)
    room = room_of(*about_room, len(training.examples.y))
    chosen = certificates_of(partial(training.means, seed=seed), wanted, question, room)
    result = beyond(chosen, training, mixture, Domain.of(clients), confidence, partial(room_of, *about_room), seed)
    rows = tuple(replace(row, achieved=reach(row.radius)) for row in result.rows)
    return hold_rows(replace(result, rows=rows, source=source))


def beyond(
    chosen: Certificates,
    training: Asked,
    test: Asked,
    domain: Domain,
    confidence: float,
    room: Callable[[int], Room],
    seed: int = 0,
) -> Certificates:
    """Return certificates for the distributions behind the test examples, all with this probability.

    They use the chosen gammas. ``room`` is a function of the number of test examples.
    """
    level = (1.0 - confidence) / len(chosen)
    rows = tuple(_beyond(row, chosen, training, test, domain, level, room, seed) for row in chosen.rows)
    rest = chosen.quantity.inquiry(chosen, replace(chosen[0], radius=0.0))
    report = None if chosen.quantity.has_slopes else rest.report  # the loss itself, without what rounding may add
    loss = test.answers(report, [rest.setting], seed).value[0] @ test.weights
    return replace(chosen, rows=rows, loss=float(loss), confidence=confidence)


def _constants(
    mixture: Mixture, clients: Federation, norm: float, quantity: Quantity, by_margins: bool
) -> dict[str, Constant]:
    """Return L_z and L_zz; search for unknown ones only if a bound rests on them."""
    known = data_free_constants(mixture.task, mixture.params, math.prod(clients.input_shape), norm)
    if by_margins:
        kind = "attested" if last_layer(mixture.task.module) is None else "bound"
        known = {"L_z": Constant(math.inf, kind, "not known of this loss"), "L_zz": UNNEEDED, **known}
    elif len(known) < 2:
        known = input_constants(mixture.task, mixture.params, clients, norm)
    return as_claimed(known, mixture.task.loss, "attested" if quantity.has_slopes else "estimate")


def check_confidence(confidence: float, split: str) -> None:
    """Raise unless the confidence lies between 0 and 1 and the split is ``"test"``."""
    Range(0.0, 1.0, ", such as 0.95", low_open=True, high_open=True).check("confidence", confidence)
    if split != "test":
        raise PreconditionError(
            f"split={split!r}: trained examples say little about others; use split='test' with a confidence"
        )


def _beyond(
    row: Certificate,
    chosen: Certificates,
    training: Asked,
    test: Asked,
    domain: Domain,
    level: float,
    room: Callable[[int], Room],
    seed: int,
) -> Certificate:
    """Return one radius's certificate for the distributions, with error probability ``level``.

    The smallest bound on the training examples is used.
    """
    quantity = chosen.quantity
    inquiry = quantity.inquiry(chosen, row)
    moments, most = Moments(inquiry.report), quantity.most(test, domain, chosen, inquiry.gamma)
    sample, trained = (moments.ask(each, inquiry.setting, most, seed) for each in (test, training))
    weights = test.weights.tolist()
    upper = sample.upper_mean(weights, trained.bets(weights, sample.sizes, level), level)
    mean = math.fsum(weight * mean for weight, mean in zip(weights, sample.means, strict=True))
    bound = min(inquiry.offset + upper, quantity.largest)
    value, gamma, simple = bound, row.gamma, quantity.largest
    if math.isinf(inquiry.gamma):
        value, gamma, simple = bound if row.radius == 0 else math.inf, math.inf, bound
    result = Certificate(row.radius, value, gamma, simple, None, row.tolerance, upper - mean)
    return with_room(result, room(sum(sample.sizes)), quantity.largest)


def finite_above(task: Task, params: Tensor, norm: float) -> float | None:
    """Return the gamma above which a linear model's phi_gamma is finite: 0 for cross-entropy; None if unknown."""
    layer = task.linear(params[None])
    return None if layer is None or not is_known(task.loss) else LinearPhi(layer[0][0], task.loss, norm).limit


def certificates_of(
    means: AskMeans,
    radii: Sequence[float],
    question: Question,
    room: Room,
    achieved: Reach = lambda radius: None,
) -> Certificates:
    """Return a mixture's certificates from its ``means``, with ``room`` for rounding.

    No value is below an achieved loss.
    """
    clean, rest, rows = question.quantity.rows(means, radii, question, achieved)
    about = (question.norm, question.unit, question.steep, question.bent, question.quantity)
    certificates = Certificates(
        tuple(rows), clean, *about, power=question.power, label_cost=question.label_cost, dtype=question.dtype
    )
    if not certificates.certifies:
        certificates = replace(certificates, reason=question.reason)
    check_room(certificates, rest, room, question.dtype)
    roomy = tuple(with_room(row, room, question.quantity.largest) for row in certificates.rows)
    certificates = replace(certificates, rows=roomy)
    if question.quantity.has_slopes and question.labels_move:
        hold_flipped(certificates, means)
    if question.quantity.has_slopes and question.finite_above is None and any(row.achieved is None for row in rows):
        hold_moved(certificates, means)
    return hold_rows(certificates)


def quantity_of(metric: str) -> Quantity:
    """Return the quantity with this name, or raise ValueError with the choices.

    >>> quantity_of("error").noun
    'error rate'
    """
    return QUANTITIES[quantities.quantity_of(metric).metric]


def check_question(power: int, gap: float) -> None:
    """Raise ValueError if the order of the ball or the gap is out of range."""
    Choice((1, 2)).check("power", power)
    Range(1e-6, 1.0, ": 0.02 asks for a certificate 2% above the reached loss").check("gap", gap)
