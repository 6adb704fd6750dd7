"""The line above every table of numbers that are not proven."""


def unproven_line(reason: str, side: str = "below") -> str:
    """Return the first line of a table of estimates, which can be `side` (below or above) the truth.

    >>> unproven_line("no bound is known for its layer GELU")[:64]
    'Not proven: this model has no proof, because no bound is known f'
    """
    return (
        f"Not proven: this model has no proof, because {reason or 'no bound on its slope is known'}; the numbers below "
        f"are estimates and can be {side} the truth."
    )
