"""Run a client's round in your own Flower app: move its examples, and train the model on the moved ones."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn

from wafl.base.options import Count, NotNegative, Positive
from wafl.base.random import WORD, Key
from wafl.objectives import ObjectiveState, Wasserstein
from wafl.tasks.fitness import check_fitness
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task
from wafl.tasks.task import Loss, Task

PREFIX = "wafl-"
"""The prefix of the strategy's options in the train config."""

COST = "transport-cost"
"""The metric that determines gamma for a radius."""

HEADER = 1024
"""The maximum difference in bytes between numpy's headers of two equal arrays."""

PROXIMAL = "proximal-mu"
"""The name of FedProx's proximal coefficient in Flower's messages."""

_INPUTS, _LABELS = ("image", "img", "x", "pixel_values"), ("label", "labels", "y")
_RATES = ("lr", "learning-rate")

Record = TypeVar("Record")
Step = Callable[[Tensor, Tensor], Tensor]
"""A function that returns the parameters after a step, from the parameters and the gradient, both ``[1, P]``."""


def train(
    model: nn.Module,
    loader: Iterable[Any],
    message: Message,
    context: Context,
    *,
    lr: float | None = None,
    local_epochs: int | None = None,
    loss: Loss = "cross_entropy",
    optimizer: torch.optim.Optimizer | None = None,
    device: torch.device | str | None = None,
) -> Message:
    """Train the model on phi_gamma, starting from the message's arrays, with one step of plain SGD per batch.

    With Flower's FedProx mixed into the strategy, each step is also pulled toward the message's arrays.

    Args:
        model: the model; it is changed in place.
        loader: batches ``(x, y)``, whose additional items are ignored, or dicts with image, img, x or pixel_values, and
            label, labels or y.
        message: the message from a server whose strategy is :class:`wafl.flower.WAFL`.
        context: Flower's context of the ClientApp.
        lr: the learning rate; by default "lr" or "learning-rate" of the train config or of the run config.
        local_epochs: the number of passes over the loader; by default "local-epochs" of the run config, or 1.
        loss: "cross_entropy", "squared_error", or your own loss.
        optimizer: an optimizer of ``model.parameters()`` that replaces plain SGD and has its own learning rate.
        device: the device of training; by default the model's device.

    Returns:
        The reply: the arrays, and the metrics train_loss and transport-cost, means over all examples and epochs, and
        num-examples.
    """
    arrays = _only(message.content.array_records, "ArrayRecord")
    config = _only(message.content.config_records, "ConfigRecord")
    objective, gamma = _objective(config)
    epochs: Any = context.run_config.get("local-epochs", 1) if local_epochs is None else local_epochs
    Count().check("local_epochs", epochs)
    mu: Any = config.get(PROXIMAL, 0.0)
    NotNegative.check(PROXIMAL, mu)
    if optimizer is not None:
        _check_optimizer(optimizer, model, lr)
    rate = _rate(lr, config, context) if optimizer is None else 0.0
    fault = array_fault(arrays, ArrayRecord(model.state_dict()))
    if fault is not None:
        raise ValueError(f"the message does not fit {type(model).__name__}: {fault}; start the server from this model")
    model.load_state_dict(arrays.to_torch_state_dict())

    home = next((value.device for value in model.parameters()), "cpu")
    task = make_task(model, loss, home if device is None else device)
    _check_batch_norm(task)
    params = task.initial()[None]
    objective.check_model(Problem(task, params))
    scalars = {"gamma": gamma, "excess": gamma} if "excess" in objective.scalars() else {"gamma": gamma}
    if objective.learner is not None:
        scalars["gamma"] = max(gamma, objective.learner.lowest_gamma(Problem(task, params)))
    key = _key(config, context, params.device)
    step = partial(torch.sub, alpha=rate) if optimizer is None else _stepped(optimizer, model, task)
    params, metrics = _descend(task, objective, scalars, params, loader, _held(step, params, float(mu)), epochs, key)
    _write(model, task, params)

    state = model.state_dict()
    # In the order of the message's arrays, because Flower's clipping depends on the position.
    trained = ArrayRecord({name: state[name] for name in arrays})
    return Message(RecordDict({"arrays": trained, "metrics": metrics}), reply_to=message)


def array_fault(arrays: ArrayRecord, like: ArrayRecord) -> str | None:
    """Explain why ``arrays`` cannot replace ``like``, or return None if they can."""
    if arrays.keys() != like.keys():
        return f"names that only one of them has: {', '.join(sorted(arrays.keys() ^ like.keys()))}"
    for name, wanted in like.items():
        if len(arrays[name].data) > len(wanted.data) + HEADER:
            return f"array {name!r} takes {len(arrays[name].data)} bytes, expected at most {len(wanted.data)}"
        try:
            value = arrays[name].numpy()
            shape, dtype = tuple(value.shape), str(value.dtype)
        except Exception as error:  # reading unknown bytes may raise any error
            return f"array {name!r} cannot be read ({error})"
        if shape != tuple(wanted.shape) or dtype != wanted.dtype:
            return f"array {name!r} is {dtype} of shape {shape}, not {wanted.dtype} of shape {tuple(wanted.shape)}"
        if not np.isfinite(value).all():
            return f"array {name!r} contains NaN or infinity"
    return None


def _descend(
    task: Task,
    objective: Wasserstein,
    values: Mapping[str, float],
    params: Tensor,
    loader: Iterable[Any],
    take: Step,
    epochs: int,
    key: Key,
) -> tuple[Tensor, MetricRecord]:
    """Return the trained parameters and the metrics: Algorithm 1, lines 3 to 8, on batches that the loader draws."""
    step = seen = 0
    scalars = {name: params.new_full((1,), value) for name, value in values.items()}
    loss = cost = 0.0
    for epoch in range(epochs):
        before = seen
        for batch in loader:
            x, y = _examples(batch, params)
            size = x.shape[1]
            if step == 0:
                classes = None if y.is_floating_point() else int(y.max()) + 1
                check_fitness(Problem(task, params), x[:, :1], y[:, :1], classes)
            problem = Problem(task, params, task.draw_masks(key.at(step), params, x))
            weight = params.new_full((1, size), 1.0 / size)
            move = objective(problem, x, y, ObjectiveState(scalars, key.at(step), weight))
            params = take(params, move.descent(problem, weight))
            loss, cost = loss + float(move.value.sum()), cost + float(move.cost.sum())
            step, seen = step + 1, seen + size
        if seen == before:
            raise ValueError(
                f"the loader returned no batch in epoch {epoch + 1} of {epochs}: use a DataLoader or a list"
            )
    return params, MetricRecord({"train_loss": loss / seen, "num-examples": seen // epochs, COST: cost / seen})


def _stepped(optimizer: torch.optim.Optimizer, model: nn.Module, task: Task) -> Step:
    """Return a step by the optimizer, on the model's own parameters and device."""

    def take(params: Tensor, gradient: Tensor) -> Tensor:
        _write(model, task, params)
        for name, value in task.unflatten(gradient[0]).items():
            parameter = model.get_parameter(name)
            parameter.grad = value.to(parameter.device)
        optimizer.step()
        optimizer.zero_grad()
        return task.flatten({name: model.get_parameter(name) for name in task.unflatten(params[0])}).to(params)[None]

    return take


def _held(step: Step, start: Tensor, mu: float) -> Step:
    """Return FedProx's step, which adds the gradient of ``mu / 2 ||params - start||^2`` (Li et al., MLSys 2020)."""
    return step if mu == 0 else lambda params, gradient: step(params, gradient + mu * (params - start))


def _write(model: nn.Module, task: Task, params: Tensor) -> None:
    with torch.no_grad():
        for name, value in task.unflatten(params[0]).items():
            model.get_parameter(name).copy_(value)


def _check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, lr: float | None) -> None:
    if lr is not None:
        raise ValueError(
            f"lr={lr} and optimizer are both given: set the learning rate in the optimizer, or leave the optimizer out"
        )
    held = {id(value) for group in optimizer.param_groups for value in group["params"]}
    names = [name for name, value in model.named_parameters() if value.requires_grad and id(value) not in held]
    if names:
        raise ValueError(f"the optimizer lacks {', '.join(names)}: create it with model.parameters()")


def _check_batch_norm(task: Task) -> None:
    for name, layer in task.tracking.items():
        raise ValueError(
            f"{type(layer).__name__} at {name!r} keeps batch statistics, which mix examples and differ between "
            "clients: call its eval() to train with its current statistics, or use torch.nn.GroupNorm or "
            "torch.nn.LayerNorm instead"
        )


def _only(records: Mapping[str, Record], kind: str) -> Record:
    if len(records) != 1:
        raise ValueError(f"the message contains {len(records)} records of type {kind}: the server must send one")
    return next(iter(records.values()))


def _objective(config: ConfigRecord) -> tuple[Wasserstein, float]:
    """Return the objective and the current gamma, which changes every round if a radius determines it."""
    prefixed = {key: value for key, value in config.items() if key.startswith(PREFIX)}
    options: dict[str, Any] = {key.removeprefix(PREFIX): value for key, value in prefixed.items()}
    if "gamma" not in options:
        raise ValueError(f"the message's config has no {PREFIX}gamma: the server must use wafl.flower.WAFL")
    options["bounds"] = (options.pop("low"), options.pop("high")) if "low" in options else None
    if "cost_matrix" in options:
        side = math.isqrt(len(options["cost_matrix"]))
        options["cost_matrix"] = np.reshape(options["cost_matrix"], (side, side))
    gamma = options["gamma"]
    if "radius" in options:
        del options["gamma"]
    return Wasserstein(**options), gamma


def _rate(lr: float | None, config: ConfigRecord, context: Context) -> float:
    given = [lr, *(source.get(name) for source in (config, context.run_config) for name in _RATES)]
    rate: Any = next((value for value in given if value is not None), None)
    if rate is None:
        raise ValueError("no learning rate: pass train(..., lr=0.1), or set lr in the train_config or the run config")
    Positive().check("lr", rate)
    return float(rate)


def _key(config: ConfigRecord, context: Context, device: torch.device) -> Key:
    """Return the key for draws of dropout and restarts, which differ in every round, client and step."""
    client = context.node_config.get("partition-id", context.node_id)
    numbers = (int(cast(int, value)) & WORD for value in (0, config.get("server-round", 0), client, 0))
    return Key(*(torch.tensor([number], device=device) for number in numbers))


def _examples(batch: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return a batch as one lane: ``x [1, B, ...]`` and ``y [1, B]``."""
    x, y = _pair(batch)
    x, y = torch.as_tensor(x).to(like), torch.as_tensor(y).to(like.device)
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y) or len(x) == 0:
        raise ValueError(
            f"a batch has inputs of shape {tuple(x.shape)} and labels of shape {tuple(y.shape)}: "
            "the loader must return one label per input, and at least one input"
        )
    if not bool(torch.isfinite(x).all()):
        raise ValueError("a batch contains NaN or infinity: clean the data, or fill in missing values")
    return x[None], y[None].to(like.dtype if y.is_floating_point() else torch.int64)


def _pair(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, Mapping):
        named = cast(Mapping[str, Any], batch)
        inputs, labels = (next((name for name in names if name in named), None) for names in (_INPUTS, _LABELS))
        if inputs is None or labels is None:
            raise ValueError(
                f"a batch has the keys {', '.join(map(str, named))}: it must have one of {', '.join(_INPUTS)} "
                f"and one of {', '.join(_LABELS)}"
            )
        return named[inputs], named[labels]
    if isinstance(batch, Sequence) and len(pair := cast(Sequence[Any], batch)) >= 2:
        return pair[0], pair[1]
    raise ValueError(f"a batch is a {type(batch).__name__}: it must be (x, y), or a dict of inputs and labels")
