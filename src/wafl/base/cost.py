"""What a setting would cost at least: absurd sizes are refused before any work, with their price."""

import os

STEP = 1e-5
"""Seconds that one step of an ascent or a descent takes at least, on any machine."""

MOST_SECONDS = 86_400.0
"""What the steps of one run may take at that speed; real ones are a hundred times slower."""

LONGEST_ASCENT = 3_600.0
"""What one ascent, as of an attack, may take at that speed."""


def check_memory(what: str, size: float, remedy: str) -> None:
    """Refuse what takes more memory than the machine has."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > machine:
        raise ValueError(
            f"{what} would take {in_bytes(size)} of memory, and this machine has {in_bytes(machine)}: {remedy}"
        )


def check_steps(what: str, steps: float, remedy: str, most: float = MOST_SECONDS) -> None:
    """Refuse what takes too long even if every step is as fast as a step can be."""
    seconds = steps * STEP
    if seconds > most:
        time = f"{seconds / 86_400.0:,.3g} days" if seconds > 86_400.0 else f"{seconds / 3_600.0:.3g} hours"
        raise ValueError(f"{what}: up to {steps:.3g} steps, which take {time} or more: {remedy}")


def in_bytes(size: float) -> str:
    """A size in words.

    >>> in_bytes(2 * 2**30), in_bytes(500)
    ('2 GiB', '500 bytes')
    """
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20)):
        if size >= 2**power:
            return f"{size / 2**power:,.3g} {unit}" if size < 1000 * 2**power else f"{size / 2**power:,.0f} {unit}"
    return f"{size:,.0f} bytes"
