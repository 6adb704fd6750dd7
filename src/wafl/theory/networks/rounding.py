"""Bound the effect of rounding on the outputs of a model: a running error analysis, layer by layer.

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
from dataclasses import dataclass, replace
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from wafl.base.errors import PreconditionError
from wafl.base.norms import dual, power_norm
from wafl.models.layers import LipschitzConv2d, LipschitzLinear, MaxMin, NormalizedLinear, entries_of_gram
from wafl.tasks.rescaling import Rescaled
from wafl.tasks.structure.graph import Concat, NoGraphError, Plus, Sum, Times, plain_graph
from wafl.tasks.structure.sequence import is_plain
from wafl.tasks.structure.trace import trace
from wafl.tasks.task import Task
from wafl.theory.constants.layer_by_layer import ACTIVATIONS, NORMALIZING, scale_of

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
MANY = 2**20
"""The maximum number of pixels in an average, which bounds the roundings of their mean."""
CONSTANT = 3
"""The number of roundings of a sum or product with a constant: of the constant, its reciprocal and the result."""
FUNCTION = 16
"""The number of roundings of an activation's value: more than any common implementation needs."""


@dataclass(frozen=True)
class Step:
    """A layer: its function, its effect on the sizes of changes, and the sizes of the numbers that it adds."""

    apply: Callable[..., Tensor]
    through: Callable[..., Tensor]
    sizes: Callable[..., Tensor]
    roundings: int = 0
    """The maximum number of roundings of each result."""
    backward: int = 0
    """The maximum number of roundings of the layer's gradient."""
    bend: float = 0.0
    """The Lipschitz constant of an activation's slope."""
    rows: Tensor | None = None
    """The sizes of the weights of a linear layer."""
    inputs: tuple[int, ...] = (0,)
    """The indices of its input values: 0 is the input of the model, and k the output of step k - 1."""
    repeats: bool = False
    """Whether a number may contribute to more than one result."""


@dataclass(frozen=True)
class Rounding:
    """The layers of a model, as steps with rounding."""

    steps: Sequence[Step]

    @property
    def hidden(self) -> int:
        """The number of layers that compute something, without the last."""
        return sum(step.roundings > 0 for step in self.steps[:-1])

    @property
    def terms(self) -> int:
        """The maximum number of roundings of an output and of a quadratic form of the outputs."""
        return sum(step.roundings for step in self.steps) + self.classes**2

    @property
    def classes(self) -> int:
        """The number of outputs, or a few more."""
        return self.steps[-1].backward

    @property
    def smooth(self) -> bool:
        """Whether every activation has a Lipschitz slope."""
        return all(math.isfinite(step.bend) for step in self.steps)

    def errors(self, x: Tensor, dtype: Dtype) -> list[Tensor]:
        """Return bounds on the rounding error of each number of ``x [n, ...]`` and of each layer's output."""
        arithmetic = ARITHMETIC[dtype]
        values, errors = [x], [torch.zeros_like(x)]
        if arithmetic.converts:
            errors = [arithmetic.unit * x.abs() + arithmetic.tiny]
        for step in self.steps:
            inputs, off = ([each[index] for index in step.inputs] for each in (values, errors))
            sizes = step.sizes(*(value.abs() + error for value, error in zip(inputs, off, strict=True)))
            rounded = arithmetic.factor(step.roundings) * sizes + step.roundings * arithmetic.tiny
            rounded = rounded.masked_fill(~(sizes < arithmetic.largest), math.inf) if step.roundings else rounded
            values.append(step.apply(*inputs))
            errors.append((step.through(*off) + rounded) * UP)
        return errors

    def slopes(
        self, shape: Sequence[int], norm: float, dtype: Dtype, like: Tensor, errors: Sequence[Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return how far each output moves at most if the input moves by 1, and how much its error then grows at most.

        With the ``errors`` of some examples, the second is the error of the outputs' gradients at these examples.
        """
        arithmetic = ARITHMETIC[dtype]
        start = torch.ones(1, *shape, dtype=like.dtype, device=like.device)
        slopes, drifts, mixed = [start], [(arithmetic.unit if arithmetic.converts else 0.0) * start], [False]
        for step in self.steps:
            inputs, off = ([each[index] for index in step.inputs] for each in (slopes, drifts))
            count = max(map(len, off))  # activations have a row for each example, and layers before them one for all
            off = [each.expand(count, *each.shape[1:]) for each in off]
            bent: Tensor | float = 0.0
            if errors is not None and step.bend > 0.0:
                bent = step.bend * errors[step.inputs[0]] * (inputs[0] + off[0])
            flat = inputs[0].ndim == 2  # an input of a layer of tokens has a dimension more than its rows
            if step.rows is not None and flat and not mixed[step.inputs[0]]:
                # The inputs are the model's inputs in another order, and rows count by their dual norms.
                lengths = power_norm(step.rows, dual(norm), 1)[None]
                slope, drift = inputs[0].amax() * lengths, off[0].amax() * lengths
            else:
                slope, drift = step.through(*inputs), step.through(*off)
            factor = arithmetic.factor(step.roundings if errors is None else max(step.roundings, step.backward))
            slopes.append(slope)
            drifts.append((drift + factor * (slope + drift) + bent) * UP)
            mixed.append(step.roundings > 0 or step.repeats or any(mixed[index] for index in step.inputs))
        return slopes[-1], drifts[-1]

    def growth(self, shape: Sequence[int], norm: float, dtype: Dtype, like: Tensor) -> Tensor:
        """Return the maximum growth of each output's error per unit of distance, ``[C]``."""
        return self.slopes(shape, norm, dtype, like)[1][0]


_LAST: WeakKeyDictionary[Task, tuple[Tensor, Rounding | None]] = WeakKeyDictionary()
"""The last parameters of each task, because clients are asked in pieces."""


def check_stored(module: nn.Module) -> None:
    """Raise PreconditionError if a module computes weights when it is called; these lose more precision in float32."""
    try:
        computed = trace(copy.deepcopy(module).cpu().double(), lambda _: True).computed
    except NoGraphError:
        return  # nothing is proven of this module
    if computed:
        raise PreconditionError(
            "dtype='float32': the model computes weights from its parameters, and their rounding in float32 has no "
            "bound: store the weights (torch.nn.utils.parametrize.remove_parametrizations), or use dtype='float64'"
        )


def rounding_of(task: Task, params: Tensor) -> Rounding | None:
    """Return the rounding of a model at ``params [P]``; None if one of its layers is unknown."""
    last = _LAST.get(task)
    if last is None or not torch.equal(last[0], params):
        nodes = plain_graph(task.module_at(params)).nodes
        linear = task.linear(params[None]) is not None
        if linear:
            nodes = plain_graph(nn.Sequential(nn.Flatten(), *(node.module for node in nodes))).nodes
        steps = [(_step(node.module), node.inputs) for node in nodes]
        known = [replace(step, inputs=inputs) for step, inputs in steps if step is not None]
        last = params.clone(), Rounding(known) if known and len(known) == len(steps) else None
        _LAST[task] = last
    return last[1]


def _step(layer: nn.Module) -> Step | None:
    """Return the rounding of a layer, or None if the layer is unknown."""
    kind: type[Any] = type(layer)
    if not is_plain(layer, kind):
        return None
    if isinstance(layer, nn.Linear) and kind in (nn.Linear, NormalizedLinear, LipschitzLinear):
        return _linear(layer)
    if isinstance(layer, nn.Conv2d) and kind in (nn.Conv2d, LipschitzConv2d) and layer.padding_mode == "zeros":
        return _linear(layer)
    if kind is MaxMin:
        return Step(layer, _larger_of_pairs, _larger_of_pairs, bend=math.inf)
    if isinstance(layer, Sum):
        size = copy.deepcopy(layer)
        size.alpha = abs(layer.alpha)
        return Step(layer, size, size, CONSTANT, CONSTANT)
    if kind is Concat:
        return Step(layer, layer, layer, repeats=True)
    if isinstance(layer, Plus):
        return Step(layer, lambda size: size, lambda size: size + layer.value.abs(), CONSTANT, CONSTANT)
    if kind in (Times, *NORMALIZING):
        return _scaled(layer)
    if kind is nn.AdaptiveAvgPool2d:
        return Step(layer, layer, layer, MANY, MANY)
    if kind is nn.MaxPool2d:
        return Step(layer, layer, layer, bend=math.inf, repeats=True)
    if isinstance(layer, nn.AvgPool2d) and kind is nn.AvgPool2d:
        size = layer.kernel_size
        count = (size**2 if isinstance(size, int) else math.prod(size)) + 2
        return Step(layer, layer, layer, count, count)
    if kind in (nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelUnshuffle):
        return Step(layer, layer, layer)
    return _activation(layer)


def _activation(layer: nn.Module) -> Step | None:
    """Return the rounding of a function of single numbers, or None if it is unknown."""
    kind: type[Any] = type(layer)
    if isinstance(layer, nn.ReLU | nn.SiLU | nn.LeakyReLU):
        layer.inplace = False
    if isinstance(layer, nn.LeakyReLU):
        leak = max(1.0, abs(layer.negative_slope))
        return Step(layer, lambda size: leak * size, lambda size: leak * size, CONSTANT, CONSTANT, math.inf)
    if isinstance(layer, nn.Softplus):
        least, bend = math.log(2.0) / layer.beta * UP, layer.beta / 4.0
        return Step(layer, lambda size: size, lambda size: size + least, FUNCTION, FUNCTION, bend)
    if kind not in ACTIVATIONS:
        return None
    steep, bend = ACTIVATIONS[kind]
    count = 0 if kind is nn.ReLU else FUNCTION
    bounded = kind in (nn.Tanh, nn.Sigmoid)

    def sizes(size: Tensor) -> Tensor:
        return torch.ones_like(size) if bounded else steep * size

    return Step(layer, lambda size: steep * size, sizes, count, count, bend)


def _scaled(layer: nn.Module) -> Step | None:
    """Return the step of a product with constants, or of a normalization by running statistics."""
    scale = scale_of(layer)
    if scale is None:
        return None
    if not isinstance(layer, NORMALIZING):
        return Step(layer, lambda size: size * scale, lambda size: size * scale, CONSTANT, CONSTANT)
    assert layer.running_mean is not None
    center = layer.running_mean.detach().double().abs()
    bias = torch.zeros_like(center) if layer.bias is None else layer.bias.detach().double().abs()  # pyright: ignore[reportUnnecessaryComparison]

    def by_channel(values: Tensor, size: Tensor) -> Tensor:
        return values.view(1, -1, *[1] * (size.ndim - 2))

    return Step(
        layer,
        lambda size: size * by_channel(scale.expand_as(center), size),
        lambda size: (
            (size + by_channel(center, size)) * by_channel(scale.expand_as(center), size) + by_channel(bias, size)
        ),
        FUNCTION,
        FUNCTION,
    )


def _linear(layer: nn.Linear | nn.Conv2d) -> Step:
    """Return the step of a linear layer or a convolution, with its (rescaled) weights."""
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
    """Return the number of roundings of the rescaled weights.

    The divisors of almost orthogonal weights are sums of the sizes of sums. The roundings of the inner sums count as
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
