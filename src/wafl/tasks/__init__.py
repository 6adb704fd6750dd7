"""A model and its loss as pure functions of a flat parameter vector, batched over lanes, and what may be asked of them.

Start with ``task.py`` and ``problem.py``; speed lives in ``structure/`` and ``gpu/``, what layers do in ``modes/``.
"""
