"""The public door to :mod:`wafl.algorithms.local`: what clients do with a gradient."""

from wafl.algorithms.local import *  # noqa: F403
from wafl.algorithms.local import __all__ as __all__
