"""Check by trial, before any work starts, whether a model and a loss suit the data, and find the model's traits."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from wafl.base.random import Key
from wafl.tasks.modes.dropout import Site, recorded
from wafl.tasks.problem import Problem
from wafl.tasks.structure.sequence import BUSY
from wafl.tasks.structured import LayeredTask, LinearTask
from wafl.tasks.task import Task, Traits

UNFIT = (RuntimeError, ValueError, TypeError, IndexError, AttributeError)
"""The errors that models raise for unsuitable inputs."""
UNTRIED = "not tried yet"
"""The reason why lanes are not batched while a model is tried."""


def check_fitness(problem: Problem, x: Tensor, y: Tensor, num_classes: int | None) -> None:
    """Try ``x [1, 1, ...]`` and ``y [1, 1]``: the model must accept the inputs, and its outputs must suit the labels.

    The model's traits are stored as ``problem.task.traits``. ``num_classes=None`` means regression.
    """
    task, params = problem.task, problem.params
    task.traits = Traits(UNTRIED)
    try:
        task.traits = Traits(UNTRIED, integers=takes_integers(lambda x: task.call(params[0], x), x[0]))
        outputs = task.outputs(params, x)
        width = outputs.shape[-1]
        if isinstance(task, LinearTask):  # whose outputs are of flat inputs, even if the module does not flatten them
            task.call(params[0], x[0])
    except UNFIT as error:
        shape = tuple(x.shape[2:])
        layer = _first_layer(task.module, shape)
        raise ValueError(
            f"the model does not take examples of shape {shape}, which the data have{layer}: {error}"
        ) from error
    if outputs.ndim != 3:
        raise ValueError(
            f"the model gives an output of shape {tuple(outputs.shape[2:])} for an example: it must give one vector"
        )
    if not bool(torch.isfinite(outputs).all()):
        raise ValueError("the model gives NaN or infinity for the first example, before any training")
    loss = problem.output_loss
    if loss.labels == "classes":
        if num_classes is None:
            remedy = "use loss='squared_error' for a regression, or make them integers for classes"
            if _is_one_hot(y[0, 0]):
                remedy = "they are one-hot, so pass the classes' numbers, y.argmax(1)"
            raise ValueError(f"loss={loss.name!r} needs integer labels, these are floating-point: {remedy}")
        if width < num_classes:
            raise ValueError(
                f"the model has {width} outputs for {num_classes} classes: give it one per class, "
                f"or correct the labels, which go up to {num_classes - 1}"
            )
    if loss.logistic and _ends_in_softmax(task, params, x):
        raise ValueError(
            f"the model's outputs are probabilities, but loss={loss.name!r} applies a softmax by itself: remove the "
            "softmax at the end of the model"
        )
    if loss.labels == "targets":
        targets = int(y[0, 0].numel())
        if num_classes is not None or width != targets:
            raise ValueError(
                f"loss={loss.name!r} needs floating-point targets, one per output: got {width} outputs, "
                f"{targets} targets of type {y.dtype}"
            )
    if not bool(torch.isfinite(problem.loss(x, y)).all()):
        raise ValueError(f"loss {loss.name} is NaN or infinite for the first example, before any training")
    find_traits(task, params, x, y)


def find_traits(task: Task, params: Tensor, x: Tensor, y: Tensor) -> None:
    """Try the work of a step on one lane and one example, and store the model's traits as ``task.traits``."""
    dropouts = _check_repeatable(task, params[0], x[0])
    task.traits = replace(
        task.traits, obstacle=UNTRIED, busy=False, dropout=bool(dropouts), movable=_movable(task, params[0], x[0])
    )
    on_cpu = params.device.type == "cpu"
    busy = on_cpu and task.convolution_products(params[0], x[0]) > BUSY
    cast = frozenset[str]() if on_cpu else task.cast_by_layers(params[0], x[0])
    task.traits = replace(task.traits, obstacle=_obstacle(task, params, x, y), busy=busy, cast=cast)


def _first_layer(module: nn.Module, shape: tuple[int, ...]) -> str:
    """Describe the input of the first layer with weights, if the kind of layer declares it."""
    for name, layer in module.named_modules():
        for size, what in (("in_features", "numbers"), ("in_channels", "channels")):
            if isinstance(count := getattr(layer, size, None), int):
                where = f", {name!r}," if name else ""
                flat = size == "in_features" and len(shape) > 1 and count == math.prod(shape)
                remedy = ": put torch.nn.Flatten() before it" if flat else ""
                return f" (its first layer{where} takes {count} {what}{remedy})"
    return ""


def _is_one_hot(y: Tensor) -> bool:
    return y.ndim == 1 and len(y) > 1 and bool(((y == 0) | (y == 1)).all()) and float(y.sum()) == 1.0


def _ends_in_softmax(task: Task, params: Tensor, x: Tensor) -> bool:
    """Return whether outputs are on the simplex, at two inputs where they differ."""
    if isinstance(task, LinearTask):
        return False
    two = torch.cat([task.outputs(params, inputs)[0] for inputs in (x, 0.5 * x)])
    simplex = bool((two >= 0).all()) and bool(((two.sum(-1) - 1).abs() < 1e-4).all())
    return two.shape[-1] > 1 and simplex and not torch.equal(two[0], two[1])


def takes_integers(model: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Return whether a model rejects floating-point ``x [B, ...]``, but accepts the same numbers as integers."""

    def takes(x: Tensor) -> bool:
        try:
            model(x)
        except UNFIT:
            return False
        return True

    with torch.no_grad():
        return not takes(x) and torch.equal(x, x.round()) and takes(x.long())


def _movable(task: Task, flat: Tensor, x: Tensor) -> bool:
    """Return whether the outputs have a gradient in the inputs; integer, rounded or cast inputs have none."""
    with torch.enable_grad():
        return task.call(flat.detach(), x.detach().requires_grad_()).requires_grad


def _check_repeatable(task: Task, flat: Tensor, x: Tensor) -> list[Site]:
    """Return the model's dropouts; raise ValueError for other hidden randomness or changing buffers."""
    name, cuda = type(task.module).__name__, flat.device if flat.device.type == "cuda" else None
    before = {key: value.clone() for key, value in task.module.named_buffers()}
    sites: list[Site] = []
    with torch.random.fork_rng([] if cuda is None else [cuda]), torch.no_grad():
        start = _generators(cuda)
        task.call(flat, x)
        if _generators(cuda) != start:
            raise ValueError(f"{name} draws random numbers even in evaluation, after eval(): no result would repeat")
        with recorded(sites):
            task.call(flat, x, trains=True)
        if _generators(cuda) != start:
            raise ValueError(
                f"{name} draws from torch's global generator while it trains, so no run could be repeated: draw with "
                "torch.nn.Dropout alone, whose masks come from the seed; dropout inside of attention, LSTM or GRU "
                "must be 0"
            )
    for key, value in task.module.named_buffers():
        if not torch.equal(value, before[key]):
            raise ValueError(
                f"{name} changes its buffer {key!r} while it trains, and would mix up clients: call eval() on that "
                "layer to keep what it holds, or replace the layer"
            )
    return sites


def _generators(cuda: torch.device | None) -> tuple[bytes, ...]:
    """Return the states of torch's global generators."""
    states = [torch.get_rng_state(), *([] if cuda is None else [torch.cuda.get_rng_state(cuda)])]
    return tuple(state.numpy().tobytes() for state in states)


def _obstacle(task: Task, params: Tensor, x: Tensor, y: Tensor) -> str | None:
    """Return the reason why two lanes cannot be computed at once, or None if they can."""
    if isinstance(task, LinearTask):
        return None
    _try(task, params, x, y)  # what fails here would fail in any case
    if isinstance(task, LayeredTask):
        return None
    traits, task.traits = task.traits, replace(task.traits, obstacle=None)
    try:
        _try(task, params, x, y)
    except Exception as error:  # torch and the model may raise anything
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    finally:
        task.traits = traits
    return None


def _try(task: Task, params: Tensor, x: Tensor, y: Tensor) -> None:
    """Run the work of a step on two lanes, and raise any error of the model."""
    params, x, y = (torch.cat([value[:1]] * 2) for value in (params, x, y))
    zero = torch.zeros(2, dtype=torch.int64, device=params.device)
    masks = task.draw_masks(Key(zero, zero, zero, zero), params, x)
    task.losses(params, x, y, masks)
    task.losses_and_gradient(params, x, y, params.new_ones(y.shape[:2]), masks)
    if task.traits.movable:
        task.input_gradient(params, x, y, masks)
    if task.num_statistics:
        task.next_statistics(params, x, params.new_ones(y.shape[:2]), masks)
