"""Registrations: what an experiment asks and how it is decided, in a file that is committed before anything runs."""

import tomllib
from hashlib import sha256
from typing import Any

from research.reproduction.experiments import folder


def registered(name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """What ``experiments/registered/NAME.toml`` says, and its name and SHA-256, which results embed as ``registered``.

    A run reads it when it starts; a changed registration is a new file.
    """
    data = (folder() / "registered" / f"{name}.toml").read_bytes()
    return tomllib.loads(data.decode()), {"name": name, "sha256": sha256(data).hexdigest()}
