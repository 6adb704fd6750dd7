"""The public door to :mod:`wafl.engine.callbacks`."""

from wafl.engine.callbacks import Callback, EarlyStopping, EvaluateEvery, Moment

__all__ = ["Callback", "EarlyStopping", "EvaluateEvery", "Moment"]
