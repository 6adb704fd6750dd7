"""Warnings that point at the user's own line, however deep inside the package they come from."""

import inspect
import warnings
from pathlib import Path


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the first line of the call stack that is not in this package."""
    package, level, frame = str(Path(__file__).parents[1]), 1, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(package):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
