"""Run the same algorithms on Flower: a ServerApp, a ClientApp, and a Strategy and a training step for your app.

``server/`` and ``node/`` are the two sides, ``wire/`` is between them, ``ops/`` is for operators.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wafl.base.extras import require

if TYPE_CHECKING:
    from wafl.flower.app.strategy import WAFL
    from wafl.flower.app.training import train

__all__ = ["WAFL", "train"]

require("flwr", extra="flower", what="wafl.flower")


def __getattr__(name: str) -> Any:
    # Every message to a client starts a process, which must not wait for imports that it does not need.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"wafl.flower.app.{'strategy' if name == 'WAFL' else 'training'}"), name)
