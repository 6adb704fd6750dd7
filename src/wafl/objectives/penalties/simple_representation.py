"""FedSR: representations that are short and tell little of an example beyond its class.

It moves no example; it adds two prices to the loss. In the paper the network gives a mean and a spread of the
representation; here a layer of the network gives the mean, and the spread is one number: any network will do.
"""

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot, softplus

from wafl.base.checks import check_space
from wafl.base.options import NotNegative, Positive, Tunable, frozen, maker
from wafl.base.random import normal
from wafl.objectives.base import Move, Objective, ObjectiveState, Term, example_draws, lane_key, lane_scalar
from wafl.tasks.inputs import Inputs, dense
from wafl.tasks.problem import Problem


@frozen
class SimpleRepresentation(Objective):
    """Descend ``E loss(z) + l2 E ||z||^2 + cmi KL(p(z|x), r(z|y))`` with z from ``p(z|x) = N(h(x), noise^2 I)``.

    ``h(x)`` is the output of a layer. One z is drawn per example and step, keyed by the seed; what the two prices are
    of is computed exactly. A trained model uses ``h(x)`` itself.

    For any ``r(z|y) = N(m_y, s_y^2)``, the mean divergence is at least the conditional mutual information between z and
    x given y. Each client learns its own r, as in the authors' code: ``m_y`` starts at 0 and ``s_y = softplus(t_y)`` at
    ``t_y = 1``, both descend the same objective at the learning rate, without momentum, and stay with the client
    between rounds. The authors' code also learns a factor of z within the divergence; the paper has none.
    """

    l2: Annotated[float, NotNegative, Tunable(30.0), "The price of long representations."] = 0.01
    cmi: Annotated[
        float, NotNegative, Tunable(30.0), "The price of what representations tell of examples beyond their class."
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
        return {"l2": self.l2, "cmi": self.cmi, "noise": self.noise}

    def initial_memory(self, problem: Problem, x: Tensor) -> Tensor:
        """The reference r of a client: ``m_y`` of all classes, then their ``t_y``."""
        return _reference(problem.outputs(x).shape[-1], self._at_rest(problem, x).flatten(2).shape[-1])

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
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


simple_representation = maker(SimpleRepresentation)
