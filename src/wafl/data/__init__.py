"""Clients' data: many clients' examples in one tensor, brought by users or loaded by name.

``federation.py`` is the front; where examples come from is in ``bring/`` and ``named/``.
"""

from wafl.data.named.datasets import Dataset, load_dataset
from wafl.data.named.domains import Domains, domains

__all__ = ["Dataset", "Domains", "domains", "load_dataset"]
