"""What a node has answered about the next client, so that nobody learns more by asking again.

A client answers the same questions about one model; about others only if its operator allows them by digest. After
its examples changed, it answers again only if enough of them did: the difference of two answers about nearly the same
examples would reveal the few that differ.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from wafl.base.errors import ConfigError
from wafl.base.files import write_whole
from wafl.data.examples import CHUNK
from wafl.data.federation import Federation
from wafl.flower.wire.values import WireError
from wafl.receipts.questions import Questions

ALLOWED = "WAFL_ALLOW_MODELS"
"""A variable of the node's own environment, which `wafl flower node --allow-model` sets."""
ENOUGH = 20
"""How many examples must have changed before a client answers again."""


class Answered:
    """The files of what a node's clients have answered; `allowed` are digests of models, or none for the first one."""

    def __init__(self, folder: Path, allowed: Collection[str]) -> None:
        self._folder, self._allowed = folder / "answered", frozenset(allowed)

    @contextmanager
    def once(self, name: str, model: str, questions: Questions, client: Federation) -> Generator[None, None, None]:
        """A block that answers; it raises WireError at the start if the client must not, and is recorded at the end."""
        if self._allowed and model not in self._allowed:
            raise WireError(f"the model {model} is not among those that this node answers about (--allow-model)")
        about = f"{questions.digest}\n{name}\n{model if self._allowed else ''}"
        file, rows = self._folder / f"{sha256(about.encode()).hexdigest()[:32]}.json", _digests(client)
        if file.exists():
            before = cast(dict[str, Any], json.loads(file.read_text()))
            if before["model"] != model:
                raise WireError(
                    f"it has answered about the model {before['model']}: its operator may allow others (--allow-model)"
                )
            one, other = Counter(cast(list[str], before["examples"])), Counter(rows)
            changed = max((one - other).total(), (other - one).total())
            if 0 < changed < ENOUGH:
                raise WireError(
                    f"fewer than {ENOUGH} of its examples have changed since it answered: it answers again later"
                )
        yield
        self._folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps({"model": model, "examples": rows}).encode(), 0o600)


def allowed_models(node_config: Mapping[str, Any]) -> list[str]:
    """Return the digests that a node's configuration allows (``allow-model``), or those of $WAFL_ALLOW_MODELS."""
    named = str(node_config.get("allow-model") or os.environ.get(ALLOWED, ""))
    digests = [digest.strip() for digest in named.split(",") if digest.strip()]
    for digest in digests:
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise ConfigError(f"allow-model: {digest!r} must be the digest of a model, 64 digits 0-9a-f")
    return digests


def _digests(client: Federation) -> list[str]:
    """Return a digest of each example and its label."""
    examples, digests = client.examples, list[str]()
    for begin in range(0, len(examples.y), CHUNK):
        raw, y = (part[begin : begin + CHUNK] for part in (examples.raw, examples.y))
        pairs = zip(raw, y, strict=True)
        digests += [sha256(x.numpy().tobytes() + label.numpy().tobytes()).hexdigest()[:32] for x, label in pairs]
    return sorted(digests)
