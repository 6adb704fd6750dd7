"""The same algorithms on Flower: a ServerApp and a ClientApp, a Strategy, and a helper for clients of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wafl.core.extras import require

if TYPE_CHECKING:
    from wafl.flower.strategy import WAFL
    from wafl.flower.training import train

__all__ = ["WAFL", "train"]

require("flwr", extra="flower", what="wafl.flower")


def __getattr__(name: str) -> Any:
    # A fresh process answers every message to a client: it must not wait for what it does not need.
    if name == "WAFL":
        from wafl.flower.strategy import WAFL

        return WAFL
    if name == "train":
        from wafl.flower.training import train

        return train
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
