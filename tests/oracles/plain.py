"""Federated averaging on phi_gamma as a plain loop over clients, for any ``torch.nn.Module``: ordinary autograd.

The random order of the examples is the reference's; dropout masks are drawn there too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
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
    statistics: str = "frozen",
) -> dict[str, Tensor]:
    """Every client takes part in every round; ``moved`` is what the objective moves, the inputs unless it is given.

    With ``statistics``, the statistics of BatchNorm layers are returned too: "averaged", or each "client" goes on with
    its own, in "fedbn" also with its own scales and offsets.
    """
    work = reference.Work(local_epochs=local_epochs, batch_size=batch_size)
    server = copy.deepcopy(model)
    sizes = [len(y) for _, y in clients]
    kept: dict[int, dict[str, Tensor]] = {}
    for t in range(rounds):
        ends: list[nn.Module] = []
        for client, (x, y) in enumerate(clients):
            local_value = copy.deepcopy(server)
            local_value.load_state_dict(kept.get(client, {}), strict=False)
            optimizer = torch.optim.SGD([p for p in local_value.parameters() if p.requires_grad], lr=learning_rate)
            for number, rows in enumerate(reference.cut_in_batches(seed, t, client, len(y), work)):
                step = Step(seed, t, client, number)
                delta = torch.zeros_like(moved(local_value, x[rows])).detach()
                if gamma is not None:
                    delta = ascend(local_value, x[rows], y[rows], delta, step, gamma, steps, forward)
                optimizer.zero_grad()
                with inputs_of_batch_norm(local_value) as seen:
                    functional.cross_entropy(forward(local_value, x[rows], delta, step), y[rows]).backward()
                optimizer.step()
                for layer, values in seen if statistics != "frozen" else []:
                    follow(layer, values)
            ends.append(local_value)
            if statistics == "client":
                kept[client] = {name: value.clone() for name, value in local_value.named_buffers()}
            if statistics == "fedbn":
                layers = {
                    name
                    for name, layer in local_value.named_modules()
                    if isinstance(layer, nn.modules.batchnorm._BatchNorm)
                }
                state = local_value.state_dict()
                kept[client] = {name: state[name].clone() for name in state if name.rpartition(".")[0] in layers}
        with torch.no_grad():
            for name, value in averaged(server, statistics).items():
                result = [dict([*end.named_parameters(), *end.named_buffers()])[name] for end in ends]
                value.copy_(torch.stack([n / sum(sizes) * part for n, part in zip(sizes, result, strict=True)]).sum(0))
    return {name: value.detach() for name, value in averaged(server, statistics).items()}


def averaged(model: nn.Module, statistics: str) -> dict[str, Tensor]:
    """Return the parameters and, if they are learned, the running statistics."""
    buffers = {name: value for name, value in model.named_buffers() if value.is_floating_point()}
    return {**dict(model.named_parameters()), **(buffers if statistics != "frozen" else {})}


def follow(layer: nn.BatchNorm1d, values: Tensor) -> None:
    """Update the running statistics as torch does in training; for one value, torch raises an error."""
    assert layer.running_mean is not None
    assert layer.momentum is not None
    if values.numel() == layer.num_features:
        layer.running_mean.lerp_(values.flatten(), layer.momentum)
    else:
        functional.batch_norm(values, layer.running_mean, layer.running_var, training=True, momentum=layer.momentum)


@contextmanager
def inputs_of_batch_norm(model: nn.Module) -> Generator[list[tuple[nn.BatchNorm1d, Tensor]], None, None]:
    """Record the inputs of BatchNorm layers during the block; all layers are in evaluation mode."""
    seen: list[tuple[nn.BatchNorm1d, Tensor]] = []
    layers = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm1d)]
    assert not any(layer.training for layer in layers)

    def note(layer: nn.BatchNorm1d, args: tuple[Tensor, ...]) -> None:
        seen.append((layer, args[0].detach()))

    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    yield seen
    for hook in hooks:
        hook.remove()


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
