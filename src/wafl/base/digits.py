"""Numbers with few digits, which read well, and whose last bits do not decide anything."""


def rounded(value: float, digits: int) -> float:
    """The value with so many significant digits.

    >>> rounded(0.0123456, 3)
    0.0123
    """
    return float(f"{value:.{digits}g}")
