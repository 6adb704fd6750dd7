"""The public name of :mod:`wafl.engine.checkpoint`."""

from wafl.engine.checkpoint import Checkpoint

__all__ = ["Checkpoint"]
