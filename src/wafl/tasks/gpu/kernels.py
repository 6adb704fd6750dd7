"""Kernels written for a GPU, where there is Triton to compile them."""

from importlib import import_module
from typing import Any


def kernels(name: str) -> Any:
    """The module of this name with its kernels, or None: Triton comes with PyTorch for CUDA, and with no other."""
    try:
        return import_module(name)
    except ImportError:
        return None
