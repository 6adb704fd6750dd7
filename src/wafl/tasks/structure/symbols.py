"""Trace modules with symbols in place of tensors, and stop where symbols are not enough."""

import operator
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import TraceError

from wafl.tasks.structure.graph import is_leaf, path_of


class Wrapped(nn.Module):
    """The module as a child, because fx would skip hooks, calls and default arguments of the root."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the model."""
        return self.model(x)


class Symbol(fx.Proxy):
    """A symbol for a tensor, also for ``isinstance``; use of its values is an obstacle even if the error is caught."""

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return Tensor

    def __getattr__(self, name: str) -> Any:
        if not hasattr(Tensor, name):
            raise AttributeError(name)
        return super().__getattr__(name)

    def _stop(self, *_: Any, **__: Any) -> Any:
        raise cast(Tracer, self.tracer).stop("it uses the values or the size of a tensor as numbers")

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


class Tracer(fx.Tracer):
    """A recorder of layers and functions by module, which does not look into layers of torch."""

    proxy_buffer_attributes = True

    def __init__(self) -> None:
        super().__init__()
        self.obstacles: list[str] = []

    def stop(self, reason: str) -> Exception:
        """Record an obstacle, and return the error to raise."""
        self.obstacles.append(f"{reason} in {path_of(self.scope.module_path.removeprefix('model'))}")
        return TraceError(self.obstacles[-1])

    def create_proxy(self, *args: Any, **kwargs: Any) -> Any:
        """Record an operation; stop if autocast is enabled."""
        if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            raise self.stop("it uses autocast")
        return super().create_proxy(*args, **kwargs)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return the symbol of a node."""
        return Symbol(node, self)

    def create_arg(self, a: Any) -> Any:
        """Return an argument for the graph; stop at tensors other than parameters and buffers."""
        if isinstance(a, fx.Proxy):  # which also says that it is a tensor
            return a.node
        if isinstance(a, Tensor) and not any(a is value for value in (*self.root.parameters(), *self.root.buffers())):
            raise self.stop("it uses a tensor that is neither a parameter nor a buffer")
        return super().create_arg(a)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is recorded as one layer."""
        return is_leaf(m)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Stop, because the module branches on a tensor."""
        raise self.stop("it branches on the values, the size or the type of a tensor")

    def iter(self, obj: fx.Proxy) -> Any:
        """Stop, because the module iterates over a tensor."""
        raise self.stop("it iterates over a tensor")

    def keys(self, obj: fx.Proxy) -> Any:
        """Stop, because the module iterates over a tensor."""
        raise self.stop("it iterates over a tensor")
