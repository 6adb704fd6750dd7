"""Trace a module into a graph of plain layers, which :mod:`wafl.theory` and :mod:`wafl.promises` then bound.

The tracer is shared by the search and the checker; each has its own bounds on the graph. The checker traces its model,
and reads no graph from a file. ``torch.fx`` is used because it works with torch 2.4, keeps the names of modules for
error messages, and does not import ``torch._dynamo``. It runs ``forward`` with a symbol instead of a tensor. A branch
on values, sizes or dtypes raises an error instead of being frozen, so a graph holds for batches of every size. Dtypes
and gradient modes can still be read elsewhere (``next(self.parameters()).dtype``). A module is therefore traced without
gradients, with gradients, and in float32 and inference mode, and all graphs must be equal.

Two assumptions remain: global state does not change, and the module computes what its graph computes. Code can detect
tracing. :func:`agrees` compares module and graph on examples.
"""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from wafl.tasks.structure.graph import Graph, Node, NoGraphError, Supports, is_leaf, kind_of, path_of
from wafl.tasks.structure.operations import Reader
from wafl.tasks.structure.sequence import has_hooks, has_unusual_values, is_patched, patched
from wafl.tasks.structure.symbols import Tracer, Wrapped

SINGLE = 16
"""The number of examples that :func:`agrees` also passes to a module one by one."""


def trace(module: nn.Module, supports: Supports) -> Graph:
    """Return the graph of a module in evaluation, or raise :class:`NoGraphError`.

    The layers of the graph are the module's layers: pass a copy. Parametrized layers are replaced by plain ones with
    the weights that they compute, and dropout is left out.
    """
    for name, layer in module.named_modules(remove_duplicate=False):
        if reason := _replaced(layer):
            raise NoGraphError(f"{kind_of(layer)} at {path_of(name)} {reason}")
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
        with torch.inference_mode():
            single = _traced(copy.deepcopy(module).float(), lambda _: True)
        if not _alike(graph, single, exactly=False):
            raise NoGraphError("it computes something else in float32 or in inference mode")
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
    if has_unusual_values(layer):
        return "has weights of a subclass of torch.Tensor"
    if kind.__call__ is not nn.Module.__call__:
        return "has its own call"
    for name, value in vars(layer).items():
        weight = name in ("weight", "bias") and (isinstance(value, Tensor) or name in parameters)
        if weight or (callable(value) and hasattr(kind, name)):
            return "has replaced methods or weights"
    return None


def _alike(one: Graph, other: Graph, *, exactly: bool) -> bool:
    """Return whether two graphs have the same layers, settings and numbers: up to float32 rounding, or exactly."""

    def numbers(node: Node) -> list[Tensor]:
        return [each.detach() for each in (*node.module.parameters(), *node.module.buffers())]

    def settings(node: Node) -> tuple[Any, ...]:
        plain = (int, float, str, tuple)
        simple = {key: value for key, value in vars(node.module).items() if isinstance(value, plain)}
        return type(node.module), node.inputs, node.place, simple, [value.shape for value in numbers(node)]

    def same(mine: Tensor, yours: Tensor) -> bool:
        if exactly:
            return torch.equal(mine, yours)
        mine, yours = mine.float(), yours.float()
        size = float(mine.abs().max()) if mine.numel() else 0.0
        return torch.allclose(mine, yours, rtol=1e-3, atol=1e-5 * min(size, 1e30), equal_nan=True)

    return [settings(node) for node in one.nodes] == [settings(node) for node in other.nodes] and all(
        same(mine, yours)
        for node, twin in zip(one.nodes, other.nodes, strict=True)
        for mine, yours in zip(numbers(node), numbers(twin), strict=True)
    )


def _traced(module: nn.Module, supports: Supports) -> Graph:
    # A copy is traced, as a forward may leave symbols on its module.
    root, tracer = Wrapped(module), Tracer()
    try:
        graph = tracer.trace(copy.deepcopy(root))
        if tracer.obstacles:
            raise NoGraphError(tracer.obstacles[0])
        return Reader(root, supports).read(graph)
    except NoGraphError:
        raise
    except Exception as error:  # whatever the module's own code raises when it gets a symbol
        reason = tracer.obstacles[0] if tracer.obstacles else f"it cannot be traced ({error})"
        raise NoGraphError(reason) from error
