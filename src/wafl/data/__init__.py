"""Data sets, and the ways to spread them over clients."""

from wafl.data.datasets import Dataset, load_dataset

__all__ = ["Dataset", "load_dataset"]
