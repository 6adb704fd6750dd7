"""The public door to :mod:`wafl.engine.checkpoint`."""

from wafl.engine.checkpoint import Checkpoint

__all__ = ["Checkpoint"]
