"""Compute the effect of rounding on the bound of each example, from the rounding of the model's outputs."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from wafl.tasks.inputs import Inputs, shared
from wafl.tasks.losses import MarginLoss, OutputLoss
from wafl.tasks.problem import Problem
from wafl.tasks.task import Task
from wafl.theory.networks.rounding import Dtype, Rounding, rounding_of

UNIT = 2.0**-53
OUT_OF_REACH = -100.0
"""Classes whose margins stay below this value add less to a loss than any rounding."""
TERMS = 128
"""The number of roundings that a search adds to the roundings of the model's sums."""
IMAGES = 16
"""The number of images that a CPU evaluates at a time; for more, new memory takes longer than the convolutions."""


_OUTPUTS: WeakKeyDictionary[Task, tuple[Tensor, dict[bytes, Tensor]]] = WeakKeyDictionary()
"""The last parameters of each task, and the tensors computed with them, by the digest of the question."""


def remembered(
    problem: Problem, x: Tensor | Inputs, y: Tensor, about: str, compute: Callable[[Problem, Tensor, Tensor], Tensor]
) -> Tensor:
    """Stack ``compute(problem of a lane, x [B, ...], y [B])`` of each lane; equal questions are computed once.

    A search asks about many gammas, and the outputs of a network do not depend on gamma.
    """
    batches = shared(x).base
    each = len(y) // len(batches)
    results: list[Tensor] = []
    for group, batch in enumerate(batches):
        words = hashlib.blake2b(about.encode())
        for values in (batch, y[group * each]):
            words.update(values.detach().cpu().contiguous().numpy().tobytes())
        digest = words.digest()
        for lane in range(group * each, (group + 1) * each):
            params = problem.params[lane]
            last = _OUTPUTS.get(problem.task)
            if last is None or not torch.equal(last[0], params):
                last = _OUTPUTS[problem.task] = params.clone(), {}
            if digest not in last[1]:
                one, size = replace(problem, params=params[None]), at_once(problem.task, batch)
                parts = zip(batch.split(size), y[lane].split(size), strict=True)
                last[1][digest] = torch.cat([compute(one, *part) for part in parts])
            results.append(last[1][digest])
    return torch.stack(results)


def at_once(task: Task, x: Tensor) -> int:
    """Return how many of the examples ``x [B, ...]`` to evaluate at a time."""
    convolves = any(isinstance(layer, nn.Conv2d) for layer in task.module.modules())
    return IMAGES if convolves and not x.is_cuda else max(1, len(x))


def outputs_of(problem: Problem, x: Tensor | Inputs, y: Tensor) -> Tensor:
    """Return the outputs ``[L, B, C]`` of a network; equal questions are computed once."""
    return remembered(problem, x, y, "outputs", lambda one, x, _: one.outputs(x[None])[0].detach())


def lost_of(problem: Problem, x: Tensor | Inputs, y: Tensor, dtype: Dtype) -> Tensor:
    """Return how far rounding may move the outputs of a network; equal questions are computed once."""
    return remembered(problem, x, y, f"lost {dtype}", lambda one, x, _: rounding_loss(dtype, one, x))


@dataclass(frozen=True)
class Slack:
    """The loss of precision of a search of phi_gamma by rounding."""

    loss: OutputLoss
    rounding: Rounding | None
    """None if the loss or a layer is unknown: then nothing is added, and nothing is proven."""
    gamma: Tensor | float

    @classmethod
    def of(cls, problem: Problem, lane: int | Tensor, gamma: Tensor | float) -> Self:
        """Return the slack of a lane's model."""
        known = has_margins(problem) or problem.output_loss.quadratic is not None
        rounding = rounding_of(problem.task, problem.params[lane]) if known else None
        return cls(problem.output_loss, rounding, gamma)

    def above(
        self, upper: Tensor, outputs: Tensor, lost: Tensor, y: Tensor, steep: Tensor | None = None, limit: float = 0.0
    ) -> Tensor:
        """Return a bound on phi_gamma from one found in float64, from outputs that are off by ``lost [..., C]``.

        ``steep [C (y), C (j)]`` are the slopes of the margins; None if nothing moves. For a squared error, ``limit`` is
        the gamma above which phi_gamma is finite.
        """
        if self.rounding is None:
            return upper
        factor, lossy = self.loss.quadratic, 8.0 * (TERMS + self.rounding.terms) * UNIT
        if factor is not None:
            stretch = self.gamma / (self.gamma - limit) if limit > 0.0 else 1.0
            upper = upper * (1.0 + lossy * stretch)
            return (upper.sqrt() + math.sqrt(factor) * lost.norm(dim=-1) * stretch**0.5).square() * (1.0 + 8.0 * UNIT)
        margin = self.loss if isinstance(self.loss, MarginLoss) else MarginLoss(0.0, 1.0)
        label, price = y[..., None], self.gamma[:, None] if isinstance(self.gamma, Tensor) else self.gamma
        gains = torch.zeros_like(outputs) if steep is None else steep[y].square() / (4.0 * price)
        lost = lost + lost.gather(-1, label)
        behind = outputs - outputs.gather(-1, label) + margin.offset + lost
        near = behind + 2.0 * gains >= OUT_OF_REACH * margin.temperature - 1e-9 * behind.abs()
        lost, gains = (part.masked_fill(~near, 0.0).amax(-1) for part in (lost, gains))
        share = lost / margin.temperature
        lost = torch.where(share < 0.1, torch.minimum(lost, share.expm1() * (upper.abs() + 5.0 * gains)), lost)
        least = 8.0 * UNIT * (margin.offset + margin.temperature * (TERMS + self.rounding.classes))
        return upper + lossy * (upper.abs() + gains) + lost + least


def has_margins(problem: Problem) -> bool:
    """Return whether the loss is a function of the margins between classes."""
    return problem.output_loss.logistic or isinstance(problem.output_loss, MarginLoss)


def rounding_loss(dtype: Dtype, problem: Problem, x: Tensor) -> Tensor:
    """Return how far rounding may move the outputs of ``x [B, ...]``, ``[B, C]``; 0 if unknown."""
    rounding = rounding_of(problem.task, problem.params[0])
    if rounding is None:
        return torch.zeros_like(problem.outputs(x[None])[0].detach())
    error = rounding.errors(x, "float64")[-1]
    return (8.0 * rounding.hidden + 1.0) * error + (error if dtype == "float64" else rounding.errors(x, dtype)[-1])


def each_lane(problem: Problem, x: Tensor | Inputs, compute: Callable[[Problem, Tensor], Tensor]) -> Tensor:
    """Stack ``compute(problem of a lane, x [B, ...])`` of each lane; equal lanes share one result."""
    batches, results = shared(x).base, list[Tensor]()
    each = len(problem.params) // len(batches)
    for lane, params in enumerate(problem.params):
        if lane % each == 0 or not torch.equal(params, problem.params[lane - 1]):
            results.append(compute(replace(problem, params=params[None]), batches[lane // each]))
        else:
            results.append(results[-1])
    return torch.stack(results)
