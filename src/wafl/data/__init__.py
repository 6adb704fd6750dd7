"""Hold clients' data: many clients' examples in one tensor, brought by users or loaded by name.

Start with ``federation.py``; ``bring/`` and ``named/`` contain the sources of examples.
"""

from wafl.data.named.datasets import Dataset, load_dataset
from wafl.data.named.domains import Domains, domains

__all__ = ["Dataset", "Domains", "domains", "load_dataset"]
