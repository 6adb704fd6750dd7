"""Limit a server's questions about a node's own data; only the node's operator can change the limits.

Limits do not prove privacy. They stop attacks that need single examples, or more questions than training needs.
"""

import json
import os
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from wafl.base.errors import ConfigError
from wafl.base.files import lock, write_whole
from wafl.flower.wire.values import WireError

MIN_EXAMPLES, MAX_QUESTIONS, MAX_STEPS = "min-examples", "max-questions", "max-steps"
"""Keys of a node's configuration, and options of `wafl flower node`."""
PATIENCE = 60.0


@dataclass(frozen=True)
class Limits:
    """The fewest examples behind an update, the most questions about a client in all, and the most steps of a round.

    One step computes one gradient, in the parameters or in the examples.
    """

    min_examples: int = 16
    max_questions: int = 20_000
    max_steps: int = 1_000_000

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> Self:
        """Return the limits of a node's configuration, or of its environment."""
        values = {name: _whole_number(key, node_config) for name, key in KEYS.items()}
        return cls(**{name: value for name, value in values.items() if value is not None})


KEYS = {"min_examples": MIN_EXAMPLES, "max_questions": MAX_QUESTIONS, "max_steps": MAX_STEPS}


def variable(key: str) -> str:
    """Return the environment variable that `wafl flower node` sets for an option of the node.

    >>> variable("min-examples")
    'WAFL_MIN_EXAMPLES'
    """
    return f"WAFL_{key.replace('-', '_').upper()}"


def _whole_number(key: str, node_config: Mapping[str, Any]) -> int | None:
    value = node_config.get(key, os.environ.get(variable(key)))
    if value is None:
        return None
    if isinstance(value, bool) or not str(value).isdecimal() or int(value) < 1:
        raise ConfigError(f"node config: {key}={value!r} must be a whole number, at least 1")
    return int(value)


class Questions:
    """The number of answered questions about each client, in a file that all runs and apps share."""

    def __init__(self, folder: Path, most: int) -> None:
        self._file, self._most = folder / "questions.json", most

    def count(self, names: Collection[str], questions: int) -> None:
        """Count these questions about each client. If any client has had too many, count none and raise WireError."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        busy = WireError(f"another process has locked the count of questions for {PATIENCE:g} s: ask again")
        with lock(self._file.with_suffix(".lock"), PATIENCE, busy):
            counts = Counter[str](json.loads(self._file.read_bytes()) if self._file.exists() else {})
            counts.update(dict.fromkeys(names, questions))
            for name in names:
                if counts[name] > self._most:
                    raise WireError(
                        f"{name} would answer its question {counts[name]}, and its operator allows {self._most} in all "
                        f"runs: start the node with a larger {MAX_QUESTIONS}"
                    )
            write_whole(self._file, json.dumps(counts).encode(), 0o600)
