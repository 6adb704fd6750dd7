"""Texts of tables and figures: the names of tests (the clients and their data), and the line above estimates."""

import re

CLEAN = "clean"
SPLITS = ("train", "test", "unseen")
"""The splits of examples: clients that train have ``train`` and ``test``; clients that never train have ``unseen``."""
_BOUNDS = re.compile(r", (within \[[^\]]*\]|within the bounds of the data|unbounded)(?=$|;)")
_UNIT = re.compile(r" \((?!at the output of )[^()]*\)")


def shorten(test: str) -> str:
    """Shorten the description of an attack or shift: drop the unit and the bounds, keep norm, size and steps.

    >>> shorten("l_inf PGD, epsilon 0.1 (pixels in [0, 1]), 20 steps, within [0, 1]")
    'l_inf PGD, epsilon 0.1, 20 steps'
    >>> shorten("Gaussian noise, std 0.3 (pixels in [0, 1]), unbounded")
    'Gaussian noise, std 0.3'
    """
    return _UNIT.sub("", _BOUNDS.sub("", test))


def attacked_clients(share: float, attack: str = "") -> str:
    """Name a test with a share of attacked clients, and the attack if given.

    >>> attacked_clients(0.4), attacked_clients(1.0, "l_inf PGD, epsilon 0.1, 20 steps")
    ('40% attacked', 'all attacked: l_inf PGD, epsilon 0.1, 20 steps')
    """
    whom = "all attacked" if share == 1.0 else f"{share:.0%} attacked"
    return f"{whom}: {attack}" if attack else whom


def unseen_clients(shift: str | None = None, under: str = "") -> str:
    """Name a test on clients that never train, by their shift and their attack ``under``, if there are any.

    >>> unseen_clients(), unseen_clients("Gaussian noise, std 0.3")
    ('unseen clients, clean', 'unseen clients with Gaussian noise, std 0.3')
    >>> unseen_clients(under="40% attacked: l2 FGSM, epsilon 1")
    'unseen clients, 40% attacked: l2 FGSM, epsilon 1'
    """
    clients, test = f"unseen clients with {shift}" if shift else "unseen clients", under or ("" if shift else CLEAN)
    return f"{clients}, {test}" if test else clients


def unproven_line(reason: str, side: str = "below") -> str:
    """Return the first line of a table of estimates, which may lie on one `side` (below or above) of the truth.

    >>> unproven_line("`ELU` at `self[1]` has no proof")[:64]
    'Not proven: this model has no proof, because `ELU` at `self[1]` '
    """
    return (
        f"Not proven: this model has no proof, because {reason or 'no bound on its slope is known'}; the numbers below "
        f"are estimates and can be {side} the truth."
    )
