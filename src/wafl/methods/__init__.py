"""Define methods: :class:`Method`, which combines any parts, and the named methods, one file per family.

To add a named method, write its preset in its family's file and add one line at the end of the list below.
"""

from typing import Any

from wafl.base.errors import nearest
from wafl.methods import attacked, augmented, averaging, ball, learned, penalties, reweighted, servers
from wafl.methods.method import Method
from wafl.methods.preset import Preset

__all__ = ["METHODS", "Method", "not_a_method"]

_LISTED: tuple[Preset[...], ...] = (
    ball.WAFL,
    averaging.FedAvg,
    ball.SinkhornDRO,
    ball.ResilientWAFL,
    attacked.FedPGM,
    attacked.FedFGSM,
    attacked.FedRobust,
    learned.AFL,
    learned.DRFA,
    reweighted.CVaR,
    reweighted.FGDRO,
    reweighted.QFFL,
    reweighted.TERM,
    learned.ScaffPD,
    penalties.TRADES,
    penalties.CalFAT,
    reweighted.SFAT,
    learned.GroupDRO,
    penalties.IRM,
    reweighted.REx,
    penalties.FedSR,
    servers.FedGMA,
    averaging.FedProx,
    averaging.SCAFFOLD,
    servers.FedAvgM,
    servers.FedAdam,
    servers.FedYogi,
    augmented.Moved,
    averaging.FedSAM,
    augmented.Mixup,
    learned.FedDGGA,
    ball.DRFL,
    servers.FedNova,
    servers.FedDyn,
    servers.FedExP,
)
METHODS: dict[str, Preset[...]] = {preset.__name__: preset for preset in _LISTED}
"""All named methods, by name, in the order of pages and colors; a new method goes last."""


def not_a_method(given: Any) -> str:
    """Explain in one line why a value is not a method, with the remedy: a name, or a preset that was not called."""
    if isinstance(given, Preset):
        return f"wafl.{given.__name__} is not called: pass wafl.{given.__name__}(), with its options if you like"
    if isinstance(given, str) and (near := nearest(given, METHODS)) is not None:
        return f"unknown method {given!r}: did you mean wafl.{near}()?"
    names = ", ".join(f"wafl.{name}(...)" for name in METHODS)
    return f"unknown method {given!r}: use one of {names}, or wafl.Method(...)"
