"""Federated averaging on phi_gamma as a plain loop over clients, for any ``torch.nn.Module``: ordinary autograd.

The random order of the examples is that of the reference; dropout masks are drawn there too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.oracles import reference

DROPOUT = 15
Forward = Callable[[nn.Module, Tensor, Tensor, "Step"], Tensor]
"""From a module, a batch, how far it was moved, and the step, to the outputs."""


@dataclass(frozen=True)
class Step:
    """A local step, and the masks of its dropouts."""

    seed: int
    round: int
    client: int
    number: int

    def mask(self, site: int, shape: Sequence[int], rate: float) -> Tensor:
        """0 for a share ``rate``, otherwise ``1 / (1 - rate)``."""
        count = torch.Size(shape).numel()
        words = reference.draw(self.seed, DROPOUT + 256 * site, self.round, self.client, self.number, count)
        kept = [float(word // 256 / 2**24 >= rate) for word in words]
        return torch.tensor(kept, dtype=torch.float64).view(*shape) / (1 - rate)


def of_moved_inputs(model: nn.Module, x: Tensor, delta: Tensor, step: Step) -> Tensor:
    return model(x + delta)


def train(
    model: nn.Module,
    clients: Sequence[tuple[Tensor, Tensor]],
    *,
    rounds: int,
    local_epochs: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    gamma: float | None = None,
    steps: int = 15,
    forward: Forward = of_moved_inputs,
    moved: Callable[[nn.Module, Tensor], Tensor] = lambda model, x: x,
) -> dict[str, Tensor]:
    """Every client takes part in every round; ``moved`` is what the adversary moves, the inputs unless it is given."""
    work = reference.Work(local_epochs=local_epochs, batch_size=batch_size)
    server = copy.deepcopy(model)
    sizes = [len(y) for _, y in clients]
    for t in range(rounds):
        ends: list[nn.Module] = []
        for client, (x, y) in enumerate(clients):
            own = copy.deepcopy(server)
            optimizer = torch.optim.SGD([p for p in own.parameters() if p.requires_grad], lr=learning_rate)
            for number, rows in enumerate(reference.cut_in_batches(seed, t, client, len(y), work)):
                step = Step(seed, t, client, number)
                delta = torch.zeros_like(moved(own, x[rows])).detach()
                if gamma is not None:
                    delta = ascend(own, x[rows], y[rows], delta, step, gamma, steps, forward)
                optimizer.zero_grad()
                functional.cross_entropy(forward(own, x[rows], delta, step), y[rows]).backward()
                optimizer.step()
            ends.append(own)
        with torch.no_grad():
            for name, value in server.named_parameters():
                shares = [size / sum(sizes) * end.get_parameter(name) for size, end in zip(sizes, ends, strict=True)]
                value.copy_(torch.stack(shares).sum(0))
    return {name: value.detach() for name, value in server.named_parameters()}


def ascend(
    model: nn.Module, x: Tensor, y: Tensor, start: Tensor, step: Step, gamma: float, steps: int, forward: Forward
) -> Tensor:
    """``delta <- delta + a (gradient / 2 gamma - delta)``; an example halves its a when the step would descend."""

    def evaluate(delta: Tensor) -> tuple[Tensor, Tensor]:
        delta = delta.detach().requires_grad_()
        losses = functional.cross_entropy(forward(model, x, delta, step), y, reduction="none")
        (gradient,) = torch.autograd.grad(losses.sum(), delta)
        cost = delta.detach().flatten(1).square().sum(1)
        return losses.detach() - gamma * cost, gradient / (2 * gamma)

    delta, damping = start, torch.ones(len(y), dtype=start.dtype)
    value, aim = evaluate(delta)
    for _ in range(steps):
        trial = delta + damping.view(-1, *(1,) * (delta.ndim - 1)) * (aim - delta)
        trial_value, trial_aim = evaluate(trial)
        climbs = trial_value >= value - 1e-15 * value.abs().clamp_min(1)
        wide = climbs.view(-1, *(1,) * (delta.ndim - 1))
        delta, aim = torch.where(wide, trial, delta), torch.where(wide, trial_aim, aim)
        value, damping = torch.where(climbs, trial_value, value), torch.where(climbs, damping, damping / 2)
    return delta
