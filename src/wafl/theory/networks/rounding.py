"""How far rounding moves the outputs of a model: a running error analysis, layer by layer.

With the unit roundoff u, a sum of n products, in any order, differs from the exact one by at most ``n u / (1 - n u)``
times the sum of the products' sizes (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). So a linear
layer turns inputs v that are off by at most e into outputs that are off by at most ``|W| e`` plus this factor times
``|W| (|v| + e) + |b|``. An activation multiplies e by its steepest slope and adds a few units of its result. If an
example moves by t, no hidden number grows by more than its *slope* times t, so the error grows by at most the *drift*
times t: the same recursion with slopes in place of sizes and without biases. With the errors of the activations'
slopes added, the drift bounds the error of a computed gradient, too.

Assumptions: sums of products are computed as such (no Winograd, no FFT, no TF32), and activations to a few units.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from wafl.base.norms import dual, power_norm
from wafl.models.layers import LipschitzConv2d, LipschitzLinear, MaxMin, NormalizedLinear, entries_of_gram
from wafl.tasks.rescaling import Rescaled
from wafl.tasks.structure.sequence import is_plain
from wafl.tasks.task import Task
from wafl.theory.constants.layer_by_layer import ACTIVATIONS, plain_layers

Dtype = Literal["float64", "float32"]
"""The arithmetic in which a certified model is evaluated."""


@dataclass(frozen=True)
class Arithmetic:
    """The unit roundoff u and the smallest normal number; ``converts`` if weights and inputs are rounded first."""

    unit: float
    tiny: float
    largest: float
    converts: bool

    def factor(self, roundings: int) -> float:
        """Return the relative error of a number after this many roundings."""
        return roundings * self.unit / (1.0 - roundings * self.unit) if 2 * roundings * self.unit < 1.0 else math.inf


ARITHMETIC: dict[Dtype, Arithmetic] = {
    "float64": Arithmetic(2.0**-53, 2.0**-1022, 1e300, converts=False),
    "float32": Arithmetic(2.0**-24, 2.0**-126, 1e38, converts=True),
}
UP = 1.0 + 1e-6
"""A bound on an error is a sum of positive numbers, of which float64 loses far less than this."""
FUNCTION = 16
"""How many roundings the value of an activation counts as: more than any common implementation needs."""


@dataclass(frozen=True)
class Step:
    """A layer: what it computes, what it makes of the sizes of changes, and the sizes of the numbers that it adds."""

    apply: Callable[[Tensor], Tensor]
    through: Callable[[Tensor], Tensor]
    sizes: Callable[[Tensor], Tensor]
    roundings: int = 0
    """How many roundings each result goes through, at most."""
    backward: int = 0
    """The same for the layer's gradient."""
    bend: float = 0.0
    """The Lipschitz constant of an activation's slope."""
    rows: Tensor | None = None
    """The sizes of the weights of a linear layer."""


@dataclass(frozen=True)
class Rounding:
    """The layers of a model, as rounding sees them."""

    steps: Sequence[Step]

    @property
    def hidden(self) -> int:
        """The number of layers that compute something, without the last."""
        return sum(step.roundings > 0 for step in self.steps[:-1])

    @property
    def terms(self) -> int:
        """How many roundings an output and a quadratic form of the outputs go through, at most."""
        return sum(step.roundings for step in self.steps) + self.classes**2

    @property
    def classes(self) -> int:
        """The number of outputs, or a few more."""
        return self.steps[-1].backward

    @property
    def smooth(self) -> bool:
        return all(math.isfinite(step.bend) for step in self.steps)

    def errors(self, x: Tensor, dtype: Dtype) -> list[Tensor]:
        """By how much each number of ``x [n, ...]`` and of each layer's output differs at most from the exact one."""
        arithmetic = ARITHMETIC[dtype]
        value, errors = x, [arithmetic.unit * x.abs() + arithmetic.tiny if arithmetic.converts else torch.zeros_like(x)]
        for step in self.steps:
            sizes = step.sizes(value.abs() + errors[-1])
            rounded = arithmetic.factor(step.roundings) * sizes + step.roundings * arithmetic.tiny
            rounded = rounded.masked_fill(~(sizes < arithmetic.largest), math.inf) if step.roundings else rounded
            value = step.apply(value)
            errors.append((step.through(errors[-1]) + rounded) * UP)
        return errors

    def slopes(
        self, shape: Sequence[int], norm: float, dtype: Dtype, like: Tensor, errors: Sequence[Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """How far each output moves at most if the input moves by 1, and by how much its error then grows at most.

        With the ``errors`` of some examples, the second is the error of the outputs' gradients at these examples.
        """
        arithmetic = ARITHMETIC[dtype]
        slope = torch.ones(1, *shape, dtype=like.dtype, device=like.device)
        drift = (arithmetic.unit if arithmetic.converts else 0.0) * slope
        mixed = False
        for index, step in enumerate(self.steps):
            bent = step.bend * errors[index] * (slope + drift) if errors is not None and step.bend > 0.0 else 0.0
            if (
                step.rows is not None and not mixed
            ):  # all inputs have the same slope, and rows count by their dual norms
                lengths = power_norm(step.rows, dual(norm), 1)[None]
                slope, drift = slope.amax() * lengths, drift.amax() * lengths
            else:
                slope, drift = step.through(slope), step.through(drift)
            mixed = mixed or step.roundings > 0
            factor = arithmetic.factor(step.roundings if errors is None else max(step.roundings, step.backward))
            drift = (drift + factor * (slope + drift) + bent) * UP
        return slope, drift

    def growth(self, shape: Sequence[int], norm: float, dtype: Dtype, like: Tensor) -> Tensor:
        """By how much the error of each output grows at most per unit of distance, ``[C]``."""
        return self.slopes(shape, norm, dtype, like)[1][0]


_LAST: WeakKeyDictionary[Task, tuple[Tensor, Rounding | None]] = WeakKeyDictionary()
"""The last parameters of each task: clients are asked in pieces."""


def rounding_of(task: Task, params: Tensor) -> Rounding | None:
    """Return the rounding of a model at ``params [P]``; None if one of its layers is not known."""
    last = _LAST.get(task)
    if last is None or not torch.equal(last[0], params):
        module = copy.deepcopy(task.module)
        module.load_state_dict(dict(task.unflatten(params)), strict=False)
        flattens = [nn.Flatten()] if task.linear(params[None]) is not None else []
        steps = [_step(layer) for layer in [*flattens, *plain_layers(module)]]
        known = [step for step in steps if step is not None]
        last = params.clone(), Rounding(known) if known and len(known) == len(steps) else None
        _LAST[task] = last
    return last[1]


def _step(layer: nn.Module) -> Step | None:
    """Return the rounding of a layer, or None if it is not known."""
    kind: type[Any] = type(layer)
    if not is_plain(layer, kind):
        return None
    if isinstance(layer, nn.Linear) and kind in (nn.Linear, NormalizedLinear, LipschitzLinear):
        return _linear(layer)
    if isinstance(layer, nn.Conv2d) and kind in (nn.Conv2d, LipschitzConv2d) and layer.padding_mode == "zeros":
        return _linear(layer)
    if kind is MaxMin:
        return Step(layer, _larger_of_pairs, _larger_of_pairs, bend=math.inf)
    if kind is nn.MaxPool2d:
        return Step(layer, layer, layer, bend=math.inf)
    if isinstance(layer, nn.AvgPool2d) and kind is nn.AvgPool2d:
        size = layer.kernel_size
        count = (size**2 if isinstance(size, int) else math.prod(size)) + 2
        return Step(layer, layer, layer, count, count)
    if kind in (nn.Identity, nn.Flatten, nn.PixelUnshuffle):
        return Step(layer, layer, layer)
    if kind not in ACTIVATIONS:
        return None
    steep, bend = ACTIVATIONS[kind]
    if isinstance(layer, nn.ReLU | nn.SiLU):
        layer.inplace = False
    count = 0 if kind is nn.ReLU else FUNCTION
    bounded = kind in (nn.Tanh, nn.Sigmoid)

    def sizes(size: Tensor) -> Tensor:
        return torch.ones_like(size) if bounded else steep * size

    return Step(layer, lambda size: steep * size, sizes, count, count, bend)


def _linear(layer: nn.Linear | nn.Conv2d) -> Step:
    """Return the step of a linear layer or a convolution, with the weights that it uses."""
    weight = layer.weight.detach()
    terms, backward = weight[0].numel() + 3, weight.transpose(0, 1)[0].numel() + 3
    if isinstance(layer, Rescaled):
        rescaled = _roundings_of_rescaling(layer, weight)
        terms, backward, weight = terms + rescaled, backward + rescaled, layer.rescale(weight)
    bias = None if layer.bias is None else layer.bias.detach()  # pyright: ignore[reportUnnecessaryComparison]

    def applied(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        if isinstance(layer, nn.Linear):
            return lambda v: nn.functional.linear(v, weight, bias)
        about: Any = layer.stride, layer.padding, layer.dilation, layer.groups
        return lambda v: nn.functional.conv2d(v, weight, bias, *about)

    size = weight.abs()
    return Step(
        applied(weight, bias),
        applied(size, None),
        applied(size, None if bias is None else bias.abs()),
        terms,
        backward,
        rows=size if isinstance(layer, nn.Linear) else None,
    )


def _roundings_of_rescaling(layer: nn.Module, weight: Tensor) -> int:
    """Return how many roundings the rescaled weights count as.

    The divisors of almost orthogonal weights are sums of the sizes of sums: the roundings of the inner sums count as
    often as the sums of the sizes are larger than the sizes of the sums.
    """
    if isinstance(layer, NormalizedLinear):
        return weight.shape[1] + 8
    weight = weight.view(*weight.shape[:2], *(weight.shape[2:] or (1, 1)))
    if len(weight) < weight.shape[1]:
        weight = weight.transpose(0, 1)
    sums, sizes = (entries_of_gram(each).sum(-1) for each in (weight, weight.abs()))
    ratio = float((sizes / sums.clamp_min(1e-300)).max()) if len(sums) else 1.0
    inner, outer = weight[:, 0].numel() + 4, 4 * weight[0].numel() + 8
    return math.ceil(min(inner * ratio, 1e15)) + outer


def _larger_of_pairs(size: Tensor) -> Tensor:
    return torch.cat([torch.maximum(*size.chunk(2, dim=1))] * 2, dim=1)
