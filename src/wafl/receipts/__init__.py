"""Derive statements about the next client from a few numbers per client, wherever the clients are.

Each calibration client is asked once (``questions.py``) and replies with a few numbers (``reply.py``). All statements
follow from the replies (``conclusion.py``): on Flower, and in files that sites sign. An owner signs a request
(``requesting.py``), sites sign receipts (``replying.py``), and anyone can merge and check them (``merging.py``,
``checking.py``). ``__init__.pyi`` lists the public names, which are imported when they are first used.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
