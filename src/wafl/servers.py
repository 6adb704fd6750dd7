"""The public door to :mod:`wafl.algorithms.servers`: what becomes of the clients' models."""

from wafl.algorithms.servers import *  # noqa: F403
from wafl.algorithms.servers import __all__ as __all__
