"""Choose the models about which a node answers: the first one, or the models whose digests its operator allows."""

import os
import re
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wafl.base.errors import ConfigError
from wafl.data.federation import Federation
from wafl.flower.wire.values import WireError
from wafl.receipts.answered import Answered, AnsweredBeforeError
from wafl.receipts.questions import Questions

ALLOWED = "WAFL_ALLOW_MODELS"
"""A variable of the node's environment, which `wafl flower node --allow-model` sets."""


class Answers:
    """The answers of a node's clients; `allowed` are digests of models, or empty for only the first model."""

    def __init__(self, folder: Path, allowed: Collection[str]) -> None:
        self._answered, self._allowed = Answered(folder), frozenset(allowed)

    @contextmanager
    def once(self, name: str, model: str, questions: Questions, client: Federation) -> Generator[None, None, None]:
        """Record an answer at the end of the block; raise WireError at the start if the client must not answer."""
        if self._allowed and model not in self._allowed:
            raise WireError(f"the model {model} is not among those that this node answers about (--allow-model)")
        who = f"{questions.digest}\n{name}\n{model if self._allowed else ''}"
        remedy = "its operator may allow others (--allow-model)"
        try:
            with self._answered.once(who, f"the model {model}", client, other=remedy):
                yield
        except AnsweredBeforeError as error:
            raise WireError(str(error)) from error


def allowed_models(node_config: Mapping[str, Any]) -> list[str]:
    """Return the digests that a node's configuration (``allow-model``) or $WAFL_ALLOW_MODELS allows."""
    named = str(node_config.get("allow-model") or os.environ.get(ALLOWED, ""))
    digests = [digest.strip() for digest in named.split(",") if digest.strip()]
    for digest in digests:
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise ConfigError(f"allow-model: {digest!r} must be the digest of a model, 64 digits 0-9a-f")
    return digests
