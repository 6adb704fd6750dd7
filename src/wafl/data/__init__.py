"""Clients' data in one tensor (``federation.py``), brought by users (``bring/``) or loaded by name (``named/``)."""

from wafl.data.named.datasets import Dataset, load_dataset
from wafl.data.named.domains import Domains, domains

__all__ = ["Dataset", "Domains", "domains", "load_dataset"]
