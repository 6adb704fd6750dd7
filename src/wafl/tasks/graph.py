"""Trace a module into a graph of plain layers, which :mod:`wafl.theory` and :mod:`wafl.promises` then bound.

The tracer is shared by the search and the checker; each has its own bounds on the graph. The checker traces the model
that it is given, and reads no graph from a file. ``torch.fx`` is used because it works with torch 2.4, keeps the names
of modules for error messages, and does not import ``torch._dynamo``. It runs ``forward`` with a symbol instead of a
tensor. A branch on values, sizes or dtypes raises an error instead of being frozen, so a graph holds for batches of
every size. Dtypes and gradient modes can still be read elsewhere (``next(self.parameters()).dtype``). So a module is
traced without gradients, with gradients, and in float32, and all graphs must be the same.

Two assumptions remain: global state does not change, and the module computes what its graph computes. Code can find
out that it is being traced. :func:`agrees` compares module and graph on examples.
"""

import copy
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import TraceError
from torch.nn import functional
from torch.nn.utils import parametrize

from wafl.tasks.structure.sequence import has_hooks, is_patched, is_plain, members, patched

Supports = Callable[[nn.Module], bool]
SINGLE = 16
"""How many examples :func:`agrees` also passes to a module one by one."""


class NoGraphError(ValueError):
    """A module that cannot be traced into supported layers; the message is the reason, as part of a sentence."""


class Sum(nn.Module):
    """``a + alpha b`` of two tensors of the same shape."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        if a.shape != b.shape:
            raise ValueError(f"a sum of shapes {tuple(a.shape)} and {tuple(b.shape)} repeats numbers")
        return torch.add(a, b, alpha=self.alpha)


class Concat(nn.Module):
    """The concatenation of tensors along a dimension, which is not that of the examples."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts, dim=self.dim)


class _Constant(nn.Module):
    """A layer with a number, or a tensor that is the same for all examples."""

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
    """``value x``, element by element."""

    def forward(self, x: Tensor) -> Tensor:
        return self._check(x, x * self.value)


class Plus(_Constant):
    """``x + value``, element by element."""

    def forward(self, x: Tensor) -> Tensor:
        return self._check(x, x + self.value)


@dataclass(frozen=True)
class Node:
    """A layer, the indices of the values that it takes (0 is the input, k what node k - 1 returns), and its place."""

    module: nn.Module
    inputs: tuple[int, ...]
    place: str


@dataclass(frozen=True)
class Graph:
    """Layers in the order in which they are computed; the last one returns the outputs."""

    nodes: tuple[Node, ...]

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
    return Graph(tuple(Node(layer, (index,), _path(place)) for index, (place, layer) in enumerate(layers)))


def _flat(module: nn.Module, place: str) -> Iterable[tuple[str, nn.Module]]:
    if not is_plain(module, nn.Sequential):
        yield place, module
        return
    for index, layer in enumerate(members(module)):
        yield from _flat(layer, f"{place}.{index}".removeprefix("."))


def trace(module: nn.Module, supports: Supports) -> Graph:
    """Return the graph of a module in evaluation, or raise :class:`NoGraphError`.

    The layers of the graph are those of the module itself: pass a copy. Parametrized layers are replaced by plain ones
    with the weights that they compute, and dropout is left out.
    """
    for name, layer in module.named_modules(remove_duplicate=False):
        if reason := _replaced(layer):
            raise NoGraphError(f"{_kind(layer)} at {_path(name)} {reason}")
        if is_leaf(layer) and (method := is_patched(parametrize.type_before_parametrizations(layer))):
            raise NoGraphError(f"`{method}` was replaced")
    if (name := patched()) is not None:
        raise NoGraphError(f"`{name}` was replaced")
    modes = {layer: layer.training for layer in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            graph = _traced(module, supports)
        with torch.enable_grad():
            again = _traced(module, lambda _: True)
        if not _alike(graph, again, exactly=True):
            raise NoGraphError("it does not compute the same every time")
        with torch.no_grad():
            single = _traced(copy.deepcopy(module).float(), lambda _: True)
        if not _alike(graph, single, exactly=False):
            raise NoGraphError("it computes something else in float32 than in float64")
    finally:
        for layer, mode in modes.items():
            layer.training = mode
    return graph


def agrees(module: nn.Module, other: Callable[[Tensor], Tensor], batches: Iterable[Tensor]) -> bool:
    """Return whether two modules in evaluation have the same outputs on all examples, up to rounding.

    ``other`` gets whole batches. The module gets them too, and the first examples one by one: nothing may pass between
    the examples of a batch. Modules that raise an error do not agree.
    """
    try:
        with torch.no_grad():
            return all(_agree(module, other, x, number == 0) for number, x in enumerate(batches))
    except (RuntimeError, ValueError, IndexError, TypeError):
        return False


def _agree(module: nn.Module, other: Callable[[Tensor], Tensor], x: Tensor, one_by_one: bool) -> bool:
    expected = other(x.clone())
    pairs = [(x, expected), *(zip(x.split(1), expected.split(1), strict=True) if one_by_one else ())]
    for part, same in pairs[: SINGLE + 1]:
        output = module(part.clone())
        if output.shape != same.shape or not torch.allclose(output, same, rtol=1e-6, atol=1e-9):
            return False
    return True


def _replaced(layer: nn.Module) -> str | None:
    """Explain why a layer may compute something else than its class says, or return None."""
    kind, parameters = type(layer), vars(layer)["_parameters"]
    if has_hooks(layer):
        return "has hooks"
    if kind.__call__ is not nn.Module.__call__:
        return "has a call of its own"
    for name, value in vars(layer).items():
        weight = name in ("weight", "bias") and (isinstance(value, Tensor) or name in parameters)
        if weight or (callable(value) and hasattr(kind, name)):
            return "has replaced methods or weights"
    return None


def is_leaf(layer: nn.Module) -> bool:
    """Return whether a layer is from torch or wafl, and not looked into; bounds know layers by their exact classes."""
    module = type(layer).__module__
    return (module.startswith("torch.nn.") and type(layer) is not nn.Sequential) or module == "wafl.models.layers"


def _kind(layer: nn.Module) -> str:
    return f"`{parametrize.type_before_parametrizations(layer).__name__}`"


def _path(name: str) -> str:
    """Return the place of a module as code: ``self.features[0]``.

    >>> _path("features.0.norm1")
    '`self.features[0].norm1`'
    """
    parts = [f"[{part}]" if part.isdigit() else f".{part}" for part in name.split(".") if part]
    return f"`self{''.join(parts)}`"


def _alike(one: Graph, other: Graph, *, exactly: bool) -> bool:
    """Return whether two graphs have the same layers and settings and, if ``exactly``, the same numbers."""

    def numbers(node: Node) -> list[Tensor]:
        return [*node.module.parameters(), *node.module.buffers()]

    def settings(node: Node) -> tuple[Any, ...]:
        plain = (int, float, str, tuple)
        simple = {key: value for key, value in vars(node.module).items() if isinstance(value, plain)}
        return type(node.module), node.inputs, node.place, simple, [value.shape for value in numbers(node)]

    return [settings(node) for node in one.nodes] == [settings(node) for node in other.nodes] and not (
        exactly
        and not all(
            torch.equal(mine, yours)
            for node, twin in zip(one.nodes, other.nodes, strict=True)
            for mine, yours in zip(numbers(node), numbers(twin), strict=True)
        )
    )


class _Wrapped(nn.Module):
    """The module as a child: fx would skip hooks, calls and default arguments of the root."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


class _Symbol(fx.Proxy):
    """Stands for a tensor, also for ``isinstance``; what depends on its values is an obstacle even if it is caught."""

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return Tensor

    def __getattr__(self, name: str) -> Any:
        if not hasattr(Tensor, name):
            raise AttributeError(name)
        return super().__getattr__(name)

    def _stop(self, *_: Any, **__: Any) -> Any:
        raise cast(_Tracer, self.tracer).stop("it uses the values or the size of a tensor as numbers")

    __len__ = __float__ = __int__ = __index__ = __complex__ = __contains__ = __setitem__ = __array__ = _stop

    def __iadd__(self, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})

    def __isub__(self, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.isub, (self, other), {})

    def __imul__(self, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.imul, (self, other), {})

    def __itruediv__(self, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.itruediv, (self, other), {})

    __ipow__ = __ifloordiv__ = __imod__ = __imatmul__ = _stop
    __iand__ = __ior__ = __ixor__ = __ilshift__ = __irshift__ = _stop


class _Tracer(fx.Tracer):
    """Records layers and functions by module; layers of torch are not looked into."""

    proxy_buffer_attributes = True

    def __init__(self) -> None:
        super().__init__()
        self.obstacles: list[str] = []

    def stop(self, reason: str) -> Exception:
        self.obstacles.append(f"{reason} in {_path(self.scope.module_path.removeprefix('model'))}")
        return TraceError(self.obstacles[-1])

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Symbol(node, self)

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, fx.Proxy):  # which also says that it is a tensor
            return a.node
        if isinstance(a, Tensor) and not any(a is value for value in (*self.root.parameters(), *self.root.buffers())):
            raise self.stop("it uses a tensor that is neither a parameter nor a buffer")
        return super().create_arg(a)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_leaf(m)

    def to_bool(self, obj: fx.Proxy) -> bool:
        raise self.stop("it branches on the values, the size or the type of a tensor")

    def iter(self, obj: fx.Proxy) -> Any:
        raise self.stop("it iterates over a tensor")

    def keys(self, obj: fx.Proxy) -> Any:
        raise self.stop("it iterates over a tensor")


@dataclass(frozen=True)
class _Value:
    """What a node of the graph returns, by its index."""

    index: int


@dataclass(frozen=True)
class _Size:
    """One dimension of a tensor, or all of them: only the number of examples is told apart."""

    dims: tuple[int, ...] | None = None

    @property
    def examples(self) -> bool:
        return self.dims == (0,)


Settings = tuple[type[nn.Module], tuple[str, ...]]
# The layer that a function stands for, and the arguments of the function after the first.
LAYERS: dict[str, Settings] = {
    "relu": (nn.ReLU, ("inplace",)),
    "leaky_relu": (nn.LeakyReLU, ("negative_slope", "inplace")),
    "tanh": (nn.Tanh, ()),
    "sigmoid": (nn.Sigmoid, ()),
    "silu": (nn.SiLU, ("inplace",)),
    "gelu": (nn.GELU, ("approximate",)),
    "softplus": (nn.Softplus, ("beta", "threshold")),
    "max_pool2d": (nn.MaxPool2d, ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")),
    "avg_pool2d": (
        nn.AvgPool2d,
        ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
    ),
    "adaptive_avg_pool2d": (nn.AdaptiveAvgPool2d, ("output_size",)),
    "dropout": (nn.Dropout, ("p", "training", "inplace")),
    "flatten": (nn.Flatten, ("start_dim", "end_dim")),
}
ARITHMETIC = ("add", "sub", "mul", "div", "truediv", "true_divide", "neg", "matmul", "linear", "conv2d")
OTHERS = ("cat", "concat", "concatenate", "view", "reshape", "mean", "contiguous", "size", "getattr", "getitem")
IN_PLACE = {"iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "div"}
FUNCTIONS: dict[Any, str] = {getattr: "getattr"} | {
    getattr(owner, name): name
    for name in (*LAYERS, *ARITHMETIC, *OTHERS, *IN_PLACE, *(f"{name}_" for name in LAYERS))
    for owner in (operator, functional, torch)
    if hasattr(owner, name)
}
"""Functions by the name of their method."""
VIEWS = (nn.Flatten, nn.Unflatten, nn.Identity)
DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


def _traced(module: nn.Module, supports: Supports) -> Graph:
    # A copy is traced, as a forward may leave symbols on its module.
    root, tracer = _Wrapped(module), _Tracer()
    try:
        graph = tracer.trace(copy.deepcopy(root))
        if tracer.obstacles:
            raise NoGraphError(tracer.obstacles[0])
        return _Reader(root, supports).read(graph)
    except NoGraphError:
        raise
    except Exception as error:  # whatever the module's own code raises when it gets a symbol
        reason = tracer.obstacles[0] if tracer.obstacles else f"it cannot be traced ({error})"
        raise NoGraphError(reason) from error


class _Reader:
    """Turns what fx has recorded into layers, one record after another."""

    def __init__(self, root: nn.Module, supports: Supports) -> None:
        self._root, self._supports, self._nodes = root, supports, list[Node]()
        self._known: dict[fx.Node, Any] = {}
        self._place = ""
        # Which records are the same memory, and which were overwritten since.
        self._memory: dict[fx.Node, fx.Node] = {}
        self._stale: set[fx.Node] = set()

    def read(self, graph: fx.Graph) -> Graph:
        result: Any = None
        for record in graph.nodes:
            stack: list[str] = list(record.meta.get("nn_module_stack") or [""])
            inside = stack[-1].removeprefix("model")
            self._place = _path(inside if record.op == "call_module" else f"{inside}.forward")
            if record.op == "output":
                result = self._of(record.args[0])
            else:
                self._known[record] = self._read(record)
        if not isinstance(result, _Value) or result.index == 0:
            raise NoGraphError("its output is not a single tensor that depends on its input")
        return self._reaching(result.index)

    def _reaching(self, last: int) -> Graph:
        """Return the graph of the nodes that the last one needs."""
        needed, index = {last}, last
        for index in range(last, 0, -1):
            needed |= set(self._nodes[index - 1].inputs) if index in needed else set()
        order = {old: new for new, old in enumerate(sorted(needed | {0}))}
        nodes = [self._nodes[index - 1] for index in sorted(needed - {0})]
        return Graph(tuple(Node(each.module, tuple(order[i] for i in each.inputs), each.place) for each in nodes))

    def _read(self, record: fx.Node) -> Any:
        if record.op == "placeholder":
            return _Value(0)
        if record.op == "get_attr":
            return _attribute(self._root, str(record.target))
        args, options = self._of(record.args), self._of(record.kwargs)
        if record.op == "call_module":
            layer = self._root.get_submodule(str(record.target))
            given = [*args, *options.values()]
            if len(given) != 1 or not isinstance(given[0], _Value):
                raise self._unknown(_kind(layer))
            return self._layer(record, layer, given[0])
        name = str(record.target) if record.op == "call_method" else FUNCTIONS.get(record.target, "")
        shown = f"`{name or getattr(record.target, '__name__', record.target)}`"
        in_place = name in IN_PLACE or name.endswith("_")
        if in_place and not isinstance([*args, *options.values()][0], _Value):
            raise self._unknown(shown)  # it would change a weight
        if not any(map(_depends, _leaves([args, options]))):
            return _call(record, args, options)
        try:
            result = self._function(record, IN_PLACE.get(name, name.removesuffix("_")), args, dict(options))
        except (TypeError, ValueError) as error:
            if isinstance(error, NoGraphError):
                raise
            result = None
        if result is None:
            raise self._unknown(shown)
        if in_place:
            self._overwrite(record)
        return result

    def _unknown(self, shown: str) -> NoGraphError:
        return NoGraphError(f"{shown} at {self._place} has no proof")

    def _of(self, argument: Any) -> Any:
        """Return the value of what a record takes."""

        def value(record: fx.Node) -> Any:
            if record in self._stale:
                raise NoGraphError(f"a value at {self._place} is used again after it was overwritten")
            return self._known[record]

        if isinstance(argument, fx.Node):
            return value(argument)
        if isinstance(argument, slice):
            return slice(*map(self._of, (argument.start, argument.stop, argument.step)))
        if isinstance(argument, Mapping):
            return {key: self._of(each) for key, each in cast(Mapping[str, Any], argument).items()}
        if isinstance(argument, tuple | list):
            return [self._of(each) for each in cast(Sequence[Any], argument)]
        return argument

    def _share(self, record: fx.Node) -> None:
        """Note that what a record returns may be the memory of its first argument."""
        first = record.all_input_nodes[0]
        self._memory[record] = self._memory.get(first, first)

    def _overwrite(self, record: fx.Node) -> None:
        """Note that a record has changed its first argument in place."""
        self._share(record)
        self._stale |= {each for each in self._known if self._memory.get(each, each) is self._memory[record]}

    def _add(self, layer: nn.Module, *inputs: _Value) -> _Value:
        if not self._supports(layer):
            raise self._unknown(_kind(layer))
        self._nodes.append(Node(layer, tuple(value.index for value in inputs), self._place))
        return _Value(len(self._nodes))

    def _layer(self, record: fx.Node, layer: nn.Module, value: _Value) -> _Value:
        """Add a layer of one input."""
        if parametrize.is_parametrized(layer):
            layer = _unparametrized(layer)
        if type(layer) in (*VIEWS, *DROPOUT):
            self._share(record)
        if type(layer) in DROPOUT:
            return value
        if getattr(layer, "inplace", False):
            self._overwrite(record)
        return self._add(layer, value)

    def _function(self, record: fx.Node, name: str, args: list[Any], options: dict[str, Any]) -> Any:
        """Return what a function or a method returns; None if it is not known."""
        first, *rest = args or [options.pop("input")]
        if name in LAYERS and isinstance(first, _Value):
            return self._as_layer(record, name, first, rest, options)
        match name:
            case "contiguous" if isinstance(first, _Value):
                self._share(record)
                return first
            case "getattr" if isinstance(first, _Value) and rest == ["shape"]:
                return _Size()
            case "size" if isinstance(first, _Value):
                dim = options.get("dim", rest[0] if rest else None)
                return _Size() if dim is None else _Size((dim,))
            case "getitem" if first == _Size() and isinstance(rest[0], int):
                return _Size((rest[0],))
            case "mul" if isinstance(first, _Size):
                return _Size((1,))  # not the number of examples alone
            case "view" | "reshape" if isinstance(first, _Value) and not options:
                return self._reshaped(record, first, rest[0] if len(rest) == 1 and isinstance(rest[0], list) else rest)
            case "mean" if isinstance(first, _Value):
                dims = options.pop("dim", rest[0] if rest else None)
                keep = options.pop("keepdim", rest[1] if len(rest) > 1 else False)
                if options or dims is None or list(dims) != [2, 3]:
                    return None
                mean = self._add(nn.AdaptiveAvgPool2d(1), first)
                return mean if keep else self._add(nn.Flatten(), mean)
            case "cat" | "concat" | "concatenate":
                dim = options.pop("dim", rest[0] if rest else 0)
                parts = [part for part in cast(list[Any], first) if isinstance(part, _Value)]
                if options or len(parts) < len(cast(list[Any], first)) or not (dim == -1 or dim > 0):
                    return None
                return self._add(Concat(dim), *parts)
            case _:
                return self._arithmetic(name, first, rest, options)

    def _as_layer(self, record: fx.Node, name: str, x: _Value, rest: list[Any], options: dict[str, Any]) -> Any:
        kind, names = LAYERS[name]
        settings = dict(zip(names, rest, strict=False)) | options
        if len(rest) > len(names) or settings.keys() - set(names) or any(map(_depends, _leaves([settings]))):
            return None
        if name == "flatten":
            settings = {"start_dim": 0, "end_dim": -1} | settings
        if name == "dropout" and settings.pop("training", True):
            return None
        if name == "max_pool2d" and settings.pop("return_indices", False):
            return None
        return self._layer(record, kind(**settings), x)

    def _reshaped(self, record: fx.Node, x: _Value, sizes: list[Any]) -> Any:
        """Keep the first dimension, which is the examples; ``agrees`` compares how many they are."""
        examples, *rest = sizes
        fixed = all(isinstance(size, int) and size > 0 for size in rest)
        if not rest or not ((isinstance(examples, _Size) and examples.examples) or (examples == -1 and fixed)):
            return None
        self._share(record)
        flat = self._add(nn.Flatten(), x)
        if len(rest) == 1:
            return flat
        return self._add(nn.Unflatten(1, tuple(rest)), flat) if all(isinstance(size, int) for size in rest) else None

    def _arithmetic(self, name: str, first: Any, rest: list[Any], options: dict[str, Any]) -> Any:
        if name in ("linear", "conv2d") and isinstance(first, _Value):
            layer = _linear(rest, options) if name == "linear" else _convolution(rest, options)
            return None if layer is None else self._add(layer, first)
        if name == "neg" and isinstance(first, _Value):
            return self._scaled(first, -1.0)
        if len(rest) != 1 or options.keys() - {"alpha"}:
            return None
        alpha, second = float(options.get("alpha", 1.0)), rest[0]
        if name in ("add", "sub"):
            alpha = -alpha if name == "sub" else alpha
            if isinstance(first, _Value) and isinstance(second, _Value):
                return self._add(Sum(alpha), first, second)
            if isinstance(first, _Value):
                return self._add(Plus(_constant(second, lambda value: alpha * value)), first)
            return self._add(Plus(_constant(first)), self._scaled(second, alpha))
        if options:
            return None
        if name == "mul":
            x, constant = (first, second) if isinstance(first, _Value) else (second, first)
            return self._add(Times(_constant(constant)), x)
        if name in ("div", "truediv", "true_divide") and isinstance(first, _Value):
            return self._add(Times(_constant(second, lambda value: 1.0 / value)), first)
        if name == "matmul" and isinstance(first, _Value) and isinstance(second, Tensor) and second.ndim == 2:
            return self._add(cast(nn.Module, _linear([second.T], {})), first)
        return None

    def _scaled(self, value: _Value, factor: float) -> _Value:
        return value if factor == 1.0 else self._add(Times(_constant(factor)), value)


def _constant(value: Any, change: Callable[[Tensor], Tensor] = lambda value: value) -> Tensor:
    """Return a number as a tensor, and what is made of tensors as a parameter, which training may change, too."""
    if isinstance(value, Tensor):
        return nn.Parameter(change(value.detach().double()))
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("not a number")
    return change(torch.tensor(value, dtype=torch.float64))


def _depends(value: Any) -> bool:
    return isinstance(value, _Value | _Size)


def _leaves(value: Any) -> list[Any]:
    """Return all entries of nested lists, tuples, mappings and slices."""
    if isinstance(value, Mapping):
        return _leaves(list(cast(Mapping[str, Any], value).values()))
    if isinstance(value, slice):
        return _leaves([value.start, value.stop, value.step])
    if isinstance(value, list | tuple):
        return [leaf for each in cast(Sequence[Any], value) for leaf in _leaves(each)]
    return [value]


def _attribute(module: nn.Module, path: str) -> Any:
    *parents, name = path.split(".")
    return getattr(module.get_submodule(".".join(parents)), name)


def _call(record: fx.Node, args: list[Any], options: dict[str, Any]) -> Any:
    """Compute what does not depend on the input."""
    with torch.no_grad():
        if record.op == "call_method":
            return getattr(args[0], str(record.target))(*args[1:], **options)
        return cast(Any, record.target)(*args, **options)


def _unparametrized(layer: nn.Module) -> nn.Module:
    """Return the plain layer with the weights that a parametrized one computes."""
    kind = cast(type[nn.Module], parametrize.type_before_parametrizations(layer))
    plain = kind.__new__(kind)
    plain.__dict__.update(vars(layer))
    for name in ("_parameters", "_buffers", "_modules"):
        plain.__dict__[name] = dict(layer.__dict__[name])
    plain.__dict__["_modules"].pop("parametrizations")
    computed = {name: nn.Parameter(getattr(layer, name).detach()) for name in cast(Any, layer).parametrizations}
    values = {**plain.__dict__["_parameters"], **computed}
    first = {name: values[name] for name in ("weight", "bias") if name in values}  # in the order of a plain layer
    plain.__dict__["_parameters"] = {**first, **values}
    return plain


def _bound(function: Callable[..., Any], rest: list[Any], options: dict[str, Any]) -> dict[str, Any] | None:
    given = inspect.signature(function).bind(*rest, **options).arguments
    return None if any(map(_depends, _leaves([given]))) else given


def _linear(rest: list[Any], options: dict[str, Any]) -> nn.Module | None:
    def signature(weight: Any, bias: Any = None) -> None: ...

    given = _bound(signature, rest, options)
    if given is None or not isinstance(given["weight"], Tensor) or given["weight"].ndim != 2:
        return None
    outputs, inputs = given["weight"].shape
    return _with_weights(nn.Linear(inputs, outputs, given.get("bias") is not None, device="meta"), given)


def _convolution(rest: list[Any], options: dict[str, Any]) -> nn.Module | None:
    def signature(
        weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: Any = 1
    ) -> None: ...

    given = _bound(signature, rest, options)
    if given is None or not isinstance(given["weight"], Tensor) or given["weight"].ndim != 4:
        return None
    outputs, inputs, *side = given["weight"].shape
    settings: dict[str, Any] = {name: size for name, size in given.items() if name not in ("weight", "bias")}
    lists = {name: cast(list[int], size) for name, size in settings.items() if isinstance(size, list)}
    settings |= {name: tuple(sizes) for name, sizes in lists.items()}
    settings |= {"in_channels": inputs * settings.get("groups", 1), "kernel_size": tuple(side)}
    bias = given.get("bias") is not None
    return _with_weights(nn.Conv2d(out_channels=outputs, bias=bias, device="meta", **settings), given)


def _with_weights(layer: nn.Module, given: Mapping[str, Any]) -> nn.Module:
    """Give a layer weights of the module, or others that were computed from them."""
    for name in ("weight", "bias"):
        value = given.get(name)
        if isinstance(value, Tensor):
            own = value if isinstance(value, nn.Parameter) else nn.Parameter(value.detach())
            layer.register_parameter(name, own)
    return layer
