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


def draft_of(name: str) -> Path:
    """Return the file of an experiment that is not registered yet."""
    return ROOT / "experiments" / "drafts" / f"{name}.toml"


def registered_or_draft(name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a registration, or its draft while there is one, and the stamp."""
    file = draft_of(name)
    if not file.is_file():
        return registered(name)
    data = file.read_bytes()
    return tomllib.loads(data.decode()), {"name": f"draft of {name}", "sha256": sha256(data).hexdigest()}


def require_registered(name: str) -> None:
    """Exit if there is only a draft: its results would not count."""
    if (file := draft_of(name)).is_file():
        raise SystemExit(f"{file.relative_to(ROOT)} is a draft: move it to experiments/registered/ and commit it first")
