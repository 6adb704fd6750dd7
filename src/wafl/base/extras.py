"""Import optional packages, each of which is an extra of this package."""

import importlib
from typing import Any, NamedTuple


class Package(NamedTuple):
    """An optional package: the module to import, and the extra of wafl-learn that installs it."""

    module: str
    extra: str


def require(module: str, *, extra: str, what: str) -> Any:
    """Import a module, or raise ValueError with the command that installs it.

    >>> require("no_such_package", extra="tensorboard", what="TensorBoardTracker")
    Traceback (most recent call last):
    ValueError: TensorBoardTracker needs the package no_such_package: pip install 'wafl-learn[tensorboard]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ValueError(f"{what} needs the package {package}: pip install 'wafl-learn[{extra}]'") from error
