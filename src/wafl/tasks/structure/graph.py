"""Define graphs of plain layers, the result of tracing a module, and the operations with several inputs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from wafl.tasks.structure.sequence import is_plain, members

Supports = Callable[[nn.Module], bool]
"""A function that returns whether a bound is known for a layer."""


class NoGraphError(ValueError):
    """A module that cannot be traced into supported layers; the message is the reason, as part of a sentence."""


class Sum(nn.Module):
    """The sum ``a + alpha b`` of two tensors of the same shape."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the sum; raise ValueError if the shapes differ."""
        if a.shape != b.shape:
            raise ValueError(f"a sum of shapes {tuple(a.shape)} and {tuple(b.shape)} repeats numbers")
        return torch.add(a, b, alpha=self.alpha)


class Concat(nn.Module):
    """The concatenation of tensors along a dimension other than the dimension of examples."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, *parts: Tensor) -> Tensor:
        """Return the concatenation."""
        return torch.cat(parts, dim=self.dim)


class _Constant(nn.Module):
    """A layer with a number, or with a tensor that is the same for all examples."""

    value: Tensor

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        if isinstance(value, nn.Parameter):
            self.register_parameter("value", value)
        else:
            self.register_buffer("value", value)

    def _check(self, x: Tensor, result: Tensor) -> Tensor:
        if result.shape != x.shape or (self.value.ndim == x.ndim and len(self.value) > 1):
            raise ValueError(f"a constant of shape {tuple(self.value.shape)} does not fit {tuple(x.shape)}")
        return result


class Times(_Constant):
    """The product ``value x``, element by element."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the product."""
        return self._check(x, x * self.value)


class Plus(_Constant):
    """The sum ``x + value``, element by element."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        return self._check(x, x + self.value)


@dataclass(frozen=True)
class Node:
    """A layer, the indices of its inputs (0 is the input, k the result of node k - 1), and its place in the module."""

    module: nn.Module
    inputs: tuple[int, ...]
    place: str


@dataclass(frozen=True)
class Graph:
    """Layers in the order in which they are computed; the last one returns the outputs."""

    nodes: tuple[Node, ...]
    computed: bool = False
    """Whether the traced module computes some of these weights from its parameters at each call."""

    def module(self) -> nn.Module:
        """Return a module that computes the graph: an ``nn.Sequential`` of its layers if they are a chain."""
        if all(node.inputs == (index,) for index, node in enumerate(self.nodes)):
            return nn.Sequential(*(node.module for node in self.nodes))
        return Network(self)


class Network(nn.Module):
    """A graph as a module."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.layers = nn.ModuleList(node.module for node in graph.nodes)
        self.inputs = tuple(node.inputs for node in graph.nodes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the result of the last node."""
        values = [x]
        for layer, inputs in zip(self.layers, self.inputs, strict=True):
            values.append(layer(*(values[index] for index in inputs)))
        return values[-1]


def plain_graph(module: nn.Module) -> Graph:
    """Return the graph of a network or of a plain sequence without tracing it; another module is its only node."""
    if type(module) is Network and is_plain(module, Network):
        places = [f"layer {index}" for index in range(len(module.inputs))]
        return Graph(tuple(map(Node, module.layers, module.inputs, places)))
    layers = list(_flat(module, ""))
    return Graph(tuple(Node(layer, (index,), path_of(place)) for index, (place, layer) in enumerate(layers)))


def _flat(module: nn.Module, place: str) -> Iterable[tuple[str, nn.Module]]:
    if not is_plain(module, nn.Sequential):
        yield place, module
        return
    for index, layer in enumerate(members(module)):
        yield from _flat(layer, f"{place}.{index}".removeprefix("."))


def is_leaf(layer: nn.Module) -> bool:
    """Return whether a layer is from torch or wafl, and is not traced; bounds know layers by their exact classes."""
    module = type(layer).__module__
    return (module.startswith("torch.nn.") and type(layer) is not nn.Sequential) or module == "wafl.models.layers"


def kind_of(layer: nn.Module) -> str:
    """Return the class name of a layer as code."""
    return f"`{parametrize.type_before_parametrizations(layer).__name__}`"


def path_of(name: str) -> str:
    """Return the place of a module as code: ``self.features[0]``.

    >>> path_of("features.0.norm1")
    '`self.features[0].norm1`'
    """
    parts = [f"[{part}]" if part.isdigit() else f".{part}" for part in name.split(".") if part]
    return f"`self{''.join(parts)}`"
