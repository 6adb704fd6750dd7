"""Convert each recorded operation of a traced module to a layer of a graph."""

import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from wafl.tasks.structure.graph import Concat, Graph, Node, NoGraphError, Plus, Sum, Supports, Times, kind_of, path_of


@dataclass(frozen=True)
class _Value:
    """The result of a node of the graph, by its index."""

    index: int


@dataclass(frozen=True)
class _Size:
    """One dimension of a tensor, or all of them; only the number of examples is distinguished."""

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
"""The functions, by the name of their method."""
VIEWS = (nn.Flatten, nn.Unflatten, nn.Identity)
DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


class Reader:
    """A converter of fx records to layers, one record at a time."""

    def __init__(self, root: nn.Module, supports: Supports) -> None:
        self._root, self._supports, self._nodes = root, supports, list[Node]()
        self._known: dict[fx.Node, Any] = {}
        self._place, self._computed = "", False
        # Which records are the same memory, and which were overwritten since.
        self._memory: dict[fx.Node, fx.Node] = {}
        self._stale: set[fx.Node] = set()

    def read(self, graph: fx.Graph) -> Graph:
        """Return the graph of wafl's layers; raise NoGraphError if the output does not depend on the input."""
        result: Any = None
        for record in graph.nodes:
            stack: list[str] = list(record.meta.get("nn_module_stack") or [""])
            inside = stack[-1].removeprefix("model")
            self._place = path_of(inside if record.op == "call_module" else f"{inside}.forward")
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
        chosen = (Node(each.module, tuple(order[i] for i in each.inputs), each.place) for each in nodes)
        return Graph(tuple(chosen), self._computed)

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
                raise self._unknown(kind_of(layer))
            return self._layer(record, layer, given[0])
        name = str(record.target) if record.op == "call_method" else FUNCTIONS.get(record.target, "")
        shown = f"`{name or getattr(record.target, '__name__', record.target)}`"
        in_place = name in IN_PLACE or name.endswith("_")
        if in_place and not isinstance([*args, *options.values()][0], _Value):
            raise self._unknown(shown)  # it would change a weight
        if not any(map(_depends, _leaves([args, options]))):
            value = _call(record, args, options)
            self._computed |= isinstance(value, Tensor) and not _is_view(value, self._root)
            return value
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
        """Return the value of a record's argument."""

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
        """Note that a record's result may share the memory of its first argument."""
        first = record.all_input_nodes[0]
        self._memory[record] = self._memory.get(first, first)

    def _overwrite(self, record: fx.Node) -> None:
        """Note that a record has changed its first argument in place."""
        self._share(record)
        self._stale |= {each for each in self._known if self._memory.get(each, each) is self._memory[record]}

    def _add(self, layer: nn.Module, *inputs: _Value) -> _Value:
        if not self._supports(layer):
            raise self._unknown(kind_of(layer))
        self._nodes.append(Node(layer, tuple(value.index for value in inputs), self._place))
        return _Value(len(self._nodes))

    def _layer(self, record: fx.Node, layer: nn.Module, value: _Value) -> _Value:
        """Add a layer with one input."""
        if parametrize.is_parametrized(layer):
            layer, self._computed = _unparametrized(layer), True
        if type(layer) in (*VIEWS, *DROPOUT):
            self._share(record)
        if type(layer) in DROPOUT:
            return value
        if getattr(layer, "inplace", False):
            self._overwrite(record)
        return self._add(layer, value)

    def _function(self, record: fx.Node, name: str, args: list[Any], options: dict[str, Any]) -> Any:
        """Return the result of a function or method, or None if it is unknown."""
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
        """Reshape all dimensions but the first, the examples, whose number ``agrees`` compares."""
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
    """Return a number as a tensor, and a function of tensors as a parameter, since training may change it."""
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
    """Compute a record that does not depend on the input."""
    with torch.no_grad():
        if record.op == "call_method":
            return getattr(args[0], str(record.target))(*args[1:], **options)
        return cast(Any, record.target)(*args, **options)


def _is_view(value: Tensor, module: nn.Module) -> bool:
    """Return whether a tensor has the numbers of a parameter or buffer, perhaps in another order."""
    memory = value.untyped_storage().data_ptr()
    return any(memory == each.untyped_storage().data_ptr() for each in (*module.parameters(), *module.buffers()))


def _unparametrized(layer: nn.Module) -> nn.Module:
    """Return the plain layer with the weights of a parametrized one."""
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
    """Set a layer's weights to weights of the module, or to weights computed from them."""
    for name in ("weight", "bias"):
        value = given.get(name)
        if isinstance(value, Tensor):
            own = value if isinstance(value, nn.Parameter) else nn.Parameter(value.detach())
            layer.register_parameter(name, own)
    return layer
