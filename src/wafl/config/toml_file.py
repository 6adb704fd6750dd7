"""Read a TOML file as plain values."""

from pathlib import Path
from typing import Any

from wafl.base.errors import ConfigError
from wafl.base.files import read_limited
from wafl.base.toml import LONGEST, parsed_toml


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file; raise a one-line error if it cannot be read or is not TOML."""
    try:
        text = read_limited(path, LONGEST).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be read: {reason}. `wafl config init` writes a starter") from error
    try:
        return parsed_toml(text)
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
