"""Train federated models that are robust in a Wasserstein ball.

``__init__.pyi`` lists the public names. Each name is imported on first use, so `wafl --help` does not load torch.
"""

import os as _os

from lazy_loader import attach_stub as _attach_stub

__version__ = "0.1.0"

_load, __dir__, __all__ = _attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    try:
        return _load(name)
    except AttributeError as error:
        if name.startswith("_") or name in __all__:
            raise
        from wafl.base.errors import did_you_mean

        raise AttributeError(f"{error}{did_you_mean(name, __all__)}") from None


_site = _os.path.dirname(_os.path.dirname(_os.path.abspath(__file__)))
if any(name.startswith("wafl-") and name.endswith(".dist-info") for name in _os.listdir(_site)):
    from pathlib import Path as _Path

    from wafl.namesake import warn_of_namesake as _warn_of_namesake

    _warn_of_namesake(_Path(_site))
