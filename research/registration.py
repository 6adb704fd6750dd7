"""Registrations: what an experiment asks and how it is decided, in a file that is committed before anything runs."""

import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

from research.experiment import ROOT
from research.old_names import current


def registered(name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the content of ``experiments/registered/NAME.toml``, and its name and SHA-256 digest.

    Results embed the digest as ``registered``. A changed registration is a new file.
    """
    data = (ROOT / "experiments" / "registered" / f"{name}.toml").read_bytes()
    return current(tomllib.loads(data.decode())), {"name": name, "sha256": sha256(data).hexdigest()}


def draft(name: str) -> Path:
    """Return the path of the draft of a registration."""
    return ROOT / "experiments" / "drafts" / f"{name}.toml"


def registered_or_draft(name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the registration, or the draft while there is one, and its stamp."""
    if not draft(name).is_file():
        return registered(name)
    data = draft(name).read_bytes()
    return tomllib.loads(data.decode()), {"name": f"draft of {name}", "sha256": sha256(data).hexdigest()}
