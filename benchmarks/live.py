"""Measure the memory of live tensors: the peak, and the functions of wafl that made the tensors."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import wafl

PACKAGE = str(Path(wafl.__file__).parent)


class Live(TorchDispatchMode):
    """Follow every tensor that this thread makes in a block; tensors from before it do not count.

    ``bytes`` are alive now and ``peak`` were at most. ``at_peak`` has the bytes at the peak by the function that made
    them, such as ``train/step.py:step``: the innermost one of wafl.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.peak = 0, 0
        self.at_peak: Mapping[str, int] = {}
        self._alive = Counter[str]()
        self._known = set[int]()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Tensor):
                self._follow(value.untyped_storage(), "before")
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                self._follow(value.untyped_storage(), "")
        return result

    def _follow(self, storage: torch.UntypedStorage, maker: str) -> None:
        key, size = storage._cdata, storage.nbytes()  # pyright: ignore[reportPrivateUsage]
        if key in self._known:
            return
        size = 0 if maker else size
        maker = maker or _maker()
        self._known.add(key)
        self._alive[maker] += size
        self.bytes += size
        weakref.finalize(storage, self._release, key, size, maker)
        if self.bytes > self.peak:
            self.peak, self.at_peak = self.bytes, dict(self._alive)

    def _release(self, key: int, size: int, maker: str) -> None:
        self._known.discard(key)
        self._alive[maker] -= size
        self.bytes -= size


def _maker() -> str:
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):  # lambdas, comprehensions
            return f"{code.co_filename[len(PACKAGE) + 1 :]}:{code.co_name}"
        frame = frame.f_back
    return "elsewhere"
