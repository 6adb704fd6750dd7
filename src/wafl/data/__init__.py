"""Clients' data: data sets by name, and the ways to spread them over clients.

- ``examples.py``: many clients' examples in one tensor;
- ``federation.py``: clients with training and test examples; from your own arrays: ``arrays.py``, ``labels.py``,
  ``mapped.py`` (memory-mapped), ``mistakes.py``, ``arguments.py``; from other libraries: ``frames.py``, ``foreign.py``;
- ``intake.py``: what a trained model keeps of them, to read examples and to name what it predicts;
- ``preprocessing.py``: what is done to raw values, and the unit they end up in;
- ``datasets.py``: ``load_dataset``, and ``Dataset.partition``; the partitions: ``partition.py``, ``packing.py``;
- ``unseen.py``: who never trains (``Federation.hold_out``);
- ``domains.py``: several data sets as one client each, and a target;
- ``sources.py``, ``cache.py``, ``readers.py``: where data sets come from, where they are kept, what reads their files;
- ``natural.py``: data with people or places in them, inside other packages;
  ``natural_tables.py`` reads their files;
- ``contact_sheet.py``: a picture of a data set.
"""

from wafl.data.datasets import Dataset, load_dataset
from wafl.data.domains import Domains, domains

__all__ = ["Dataset", "Domains", "domains", "load_dataset"]
