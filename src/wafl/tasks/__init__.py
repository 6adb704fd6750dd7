"""Represent a model and its loss as pure functions of a flat parameter vector, batched over lanes.

Start with ``task.py`` and ``problem.py``. Fast paths are in ``structure/`` and ``gpu/``; the modes of layers are in
``modes/``.
"""
