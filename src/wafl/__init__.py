"""Wasserstein-robust federated learning.

``__init__.pyi`` lists the public names. Each is imported when it is first used, so `wafl --help` loads no torch.
"""

from lazy_loader import attach_stub as _attach_stub

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
