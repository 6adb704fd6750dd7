"""A TOML file as plain values."""

import tomllib
from pathlib import Path
from typing import Any

from wafl.base.errors import ConfigError


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file says; an error in one line if it cannot be read or is not TOML."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be read: {reason}. `wafl config init` writes a starter") from error
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
