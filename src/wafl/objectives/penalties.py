"""Add a term to the loss, or correct it for a client's labels: TRADES, CalFAT, IRM and FedSR.

IRM (IRMv1, with clients as environments) and FedSR move no example. FedSR shortens representations, so that they
contain little about an example beyond its class. In its paper the network returns a mean and a spread of the
representation. Here a layer of the network returns the mean, and the spread is one number, so any network is suitable.

A new objective is a class here and a preset in ``methods/penalties.py``.
"""

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad, softplus

from wafl.base.checks import check_space
from wafl.base.options import NotNegative, Positive, Tunable, frozen, maker, part
from wafl.base.random import normal
from wafl.objectives.attacked import ProjectedAscent
from wafl.objectives.base import Move, Objective, ObjectiveState, Term, example_draws, lane_key, lane_scalar
from wafl.tasks.inputs import Inputs, dense
from wafl.tasks.losses import SoftLabels
from wafl.tasks.problem import Problem


@frozen
class Trades(ProjectedAscent):
    """Descend ``loss(x) + beta max KL(p(x), p(x_adv))`` over ``||x_adv - x|| <= epsilon``, p the class probabilities.

    The ascent starts at a random point of the ball, because the divergence is flat at x itself. As in the paper, both
    arguments of the divergence have gradients.
    """

    random_start: Annotated[bool, "Start at a random point of the ball."] = True
    beta: Annotated[
        float, NotNegative, Tunable(), "The price of changes in the outputs within the ball; 0 is plain training."
    ] = 6.0

    def scalars(self) -> dict[str, float]:
        """Return the scalars of the ascent, and beta."""
        return {**super().scalars(), "beta": self.beta}

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        """Return the moved examples, with the terms of the loss and the divergence."""
        check_classes(problem, "TRADES")
        beta = lane_scalar(state, "beta", self.beta, problem.params)[:, None]
        x = dense(x)
        outputs = problem.outputs(x)
        log_p = outputs.log_softmax(-1)
        p = log_p.exp()
        move = within_ball(self, problem, x, torch.stack([p, torch.zeros_like(p)], -2), state)
        log_q = problem.outputs(move.inputs).log_softmax(-1)
        change = (p * (log_p - log_q)).sum(-1)
        at_rest = problem.output_loss.gradient(outputs, y) + beta[..., None] * p * (log_p - log_q - change[..., None])
        moved = beta[..., None] * (log_q.exp() - p)
        terms = (Term(x, at_rest), Term(move.inputs, moved))
        return replace(move, y_adv=y, value=problem.output_loss.value(outputs, y) + beta * change, terms=terms)


def within_ball(
    options: ProjectedAscent, problem: Problem, x: Tensor, targets: Tensor, state: ObjectiveState | None
) -> Move:
    """Return the points of the ball where the outputs are farthest from soft targets, by projected ascent."""
    inner = part(options, ProjectedAscent)
    return inner(replace(problem, task=problem.task.with_loss(SoftLabels())), x, targets, state)


def check_classes(problem: Problem, name: str) -> None:
    """Raise ValueError unless the loss converts outputs to class probabilities."""
    if not problem.output_loss.logistic:
        raise ValueError(
            f"{name} compares class probabilities: it needs loss='cross_entropy', not {problem.output_loss.name!r}"
        )


@frozen
class Calibrated(ProjectedAscent):
    """Descend the calibrated cross-entropy at the point of the ball where the calibrated outputs change most.

    Calibrated outputs are ``s + log pi``, where pi contains the shares of the classes among the client's examples. A
    model with these outputs does not learn the shares of a single client, so clients with different classes agree on
    the rest. The ascent maximizes ``KL(p(x), p(x_adv))`` of the calibrated probabilities, as in the paper.
    """

    random_start: Annotated[bool, "Start at a random point of the ball."] = True
    counts_labels: ClassVar = True

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        """Return the moved examples, with the gradient of the calibrated loss."""
        check_classes(problem, "CalFAT")
        x = dense(x)
        at_rest = problem.outputs(x)
        shift = _log_shares(state, at_rest)
        p = (at_rest + shift).softmax(-1)
        move = within_ball(self, problem, x, torch.stack([p, shift.expand_as(p)], -2), state)
        outputs = problem.outputs(move.inputs) + shift
        loss = problem.output_loss
        terms = (Term(move.inputs, loss.gradient(outputs, y)),)
        return replace(move, y_adv=y, value=loss.value(outputs, y), terms=terms)


def _log_shares(state: ObjectiveState | None, outputs: Tensor) -> Tensor:
    """Return the logarithms of the clients' class shares ``[L, 1, C]``, at least of 1e-8; 0 without counts."""
    counts = None if state is None else state.label_counts
    if counts is None:
        return outputs.new_zeros(1)
    counts = pad(counts.to(outputs), (0, outputs.shape[-1] - counts.shape[-1]))
    return (counts / counts.sum(-1, keepdim=True)).clamp_min(1e-8).log()[:, None]


@frozen
class Invariant(Objective):
    """Descend ``loss + penalty D^2``, with D the derivative of the batch's loss in a common factor of the outputs.

    ``D = d/dw mean loss(w s)`` at ``w = 1`` is the mean of ``<s, gradient of the loss in s>``. The derivative of a mean
    over a batch is an estimate, so its square is larger than the square over all of the client's examples.
    """

    penalty: Annotated[
        float, NotNegative, Tunable(30.0), "The price of outputs that a client would rescale; 0 is plain training."
    ] = 1.0

    moves: ClassVar = False

    def scalars(self) -> dict[str, float]:
        """Return the penalty."""
        return {"penalty": self.penalty}

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        """Return the examples unmoved, with the terms of the loss and the penalty."""
        check_classes(problem, "IRM")
        x, state = dense(x), state or ObjectiveState()
        outputs, loss = problem.outputs(x), problem.output_loss
        slopes, p = loss.gradient(outputs, y), outputs.softmax(-1)
        share = torch.full_like(slopes[..., 0], 1.0 / slopes.shape[1]) if state.weight is None else state.weight
        scale = (share * (outputs * slopes).sum(-1)).sum(1, keepdim=True)
        penalty = lane_scalar(state, "penalty", self.penalty, problem.params)[:, None]
        # The derivative of <s, g(s)> is g + H s, with the Hessian H = diag(p) - p p^T of the cross-entropy.
        bent = slopes + p * (outputs - (p * outputs).sum(-1, keepdim=True))
        terms = (Term(x, slopes + (2.0 * penalty * scale)[..., None] * bent),)
        value = loss.value(outputs, y) + penalty * scale.square()
        rest = torch.zeros_like(value)
        return Move(x, y, value, rest, torch.ones_like(rest, dtype=torch.bool), state=state, terms=terms)


@frozen
class SimpleRepresentation(Objective):
    """Descend ``E loss(z) + l2 E ||z||^2 + cmi KL(p(z|x), r(z|y))`` with z from ``p(z|x) = N(h(x), noise^2 I)``.

    ``h(x)`` is the output of a layer. One z is drawn per example and step, keyed by the seed; the two penalties are
    computed exactly. A trained model uses ``h(x)`` itself.

    For any ``r(z|y) = N(m_y, s_y^2)``, the mean divergence is at least the conditional mutual information between z and
    x given y. Each client learns its r, as in the authors' code: ``m_y`` starts at 0 and ``s_y = softplus(t_y)`` at
    ``t_y = 1``. Both descend the same objective at the learning rate, without momentum, and stay with the client
    between rounds. The authors' code also learns a factor of z within the divergence; the paper has none.
    """

    l2: Annotated[float, NotNegative, Tunable(30.0), "The price of long representations."] = 0.01
    cmi: Annotated[
        float, NotNegative, Tunable(30.0), "The price of information in representations beyond the class."
    ] = 0.0005
    noise: Annotated[
        float,
        Positive(": the divergence needs some"),
        Tunable(),
        "The standard deviation of a representation around the layer's output.",
    ] = 0.1
    space: Annotated[
        str | None, "The name of the layer whose output is the representation; by default the model's outputs."
    ] = None

    moves: ClassVar = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_space(self.space, None)

    def scalars(self) -> dict[str, float]:
        """Return the two penalties and the noise."""
        return {"l2": self.l2, "cmi": self.cmi, "noise": self.noise}

    def initial_memory(self, problem: Problem, x: Tensor) -> Tensor:
        """Return the client's reference r: ``m_y`` of all classes, then their ``t_y``."""
        return _reference(problem.outputs(x).shape[-1], self._at_rest(problem, x).flatten(2).shape[-1])

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        """Return the sampled representations, with the loss's terms and the next reference r."""
        loss = problem.output_loss
        if loss.labels != "classes":
            raise ValueError(f"FedSR has a reference for each class: it needs loss='cross_entropy', not {loss.name!r}")
        x, state = dense(x), state or ObjectiveState()
        l2, cmi, noise = (
            lane_scalar(state, name, value, problem.params)[:, None, None] for name, value in self.scalars().items()
        )
        at_rest = self._at_rest(problem, x)
        mean = at_rest.flatten(2)
        draws = example_draws(normal, lane_key(state, x), y.shape[1], mean.shape[-1]).to(mean)
        drawn = (mean + noise * draws).view_as(at_rest)
        if self.space is None:
            inputs, outputs = x, drawn
        else:
            inputs = problem.behind(self.space, x).shifted(drawn)
            outputs = problem.outputs(inputs)

        count = outputs.shape[-1]
        memory = state.memory
        if memory is None:
            memory = _reference(count, mean.shape[-1]).to(mean).expand(len(x), -1)
        center, raw = memory.view(len(x), 2, count, -1).unbind(1)
        classes = one_hot(y, count).to(mean)
        away, spread = mean - classes @ center, classes @ softplus(raw)
        squares = noise.square() + away.square()
        divergence = (spread.log() - noise.log() + squares / (2.0 * spread.square()) - 0.5).sum(-1)
        length = (mean.square() + noise.square()).sum(-1)
        value = loss.value(outputs, y) + l2[..., 0] * length + cmi[..., 0] * divergence

        toward = away / spread.square()
        slopes = (2.0 * l2 * mean + cmi * toward).view_as(at_rest)
        last = loss.gradient(outputs, y)
        terms = (
            (Term(x, last + slopes),) if self.space is None else (Term(inputs, last), Term(x, slopes, layer=self.space))
        )
        weight = torch.full_like(value, 1.0 / value.shape[1]) if state.weight is None else state.weight
        shares = (weight[..., None] * classes).mT
        wider = (1.0 / spread - squares / spread.pow(3)) * (classes @ raw.sigmoid())
        slope = cmi * torch.cat([shares @ -toward, shares @ wider], dim=1)
        rate = lane_scalar(state, "learning_rate", 0.0, problem.params)[:, None]
        rest, state = torch.zeros_like(value), replace(state, memory=memory - rate * slope.flatten(1))
        return Move(inputs, y, value, rest, torch.ones_like(rest, dtype=torch.bool), state=state, terms=terms)

    def _at_rest(self, problem: Problem, x: Tensor) -> Tensor:
        return problem.outputs(x) if self.space is None else problem.behind(self.space, x).at_rest


def _reference(classes: int, features: int) -> Tensor:
    return torch.cat([torch.zeros(classes * features), torch.ones(classes * features)])


trades = maker(Trades)
calibrated = maker(Calibrated)
invariant = maker(Invariant)
simple_representation = maker(SimpleRepresentation)
