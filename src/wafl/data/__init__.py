"""Data sets, and the ways to spread them over clients."""

from wafl.data.datasets import Dataset, load_dataset
from wafl.data.domains import Domains, domains

__all__ = ["Dataset", "Domains", "domains", "load_dataset"]
