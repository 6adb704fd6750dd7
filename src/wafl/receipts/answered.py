"""Record a client's answers about the next client, so that repeated questions reveal no more.

After a client's examples have changed, it answers again only if enough of them changed. Otherwise, the difference
between two answers would reveal the few changed examples.
"""

import json
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from wafl.base.files import lock, write_whole
from wafl.data.examples import CHUNK
from wafl.data.federation import Federation

ENOUGH = 20
"""The number of examples that must change before a client answers again."""

PATIENCE = 60.0
"""Seconds to wait for another process that answers for the same client."""


class AnsweredBeforeError(ValueError):
    """A client has answered before, and another answer would reveal more about its examples."""


class Answered:
    """Records of clients' answers, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "answered"

    @contextmanager
    def once(self, who: str, about: str, client: Federation, *, other: str | None) -> Generator[None, None, None]:
        """Record an answer at the end of the block.

        Raises AnsweredBeforeError at the start if too few examples of the client have changed since it answered.

        Args:
            who: the client.
            about: the question.
            client: its examples.
            other: the end of the error message if the client has answered a different question; None to allow this.
        """
        file, rows = self._folder / f"{sha256(who.encode()).hexdigest()[:32]}.json", _digests(client)
        self._folder.mkdir(parents=True, exist_ok=True)
        busy = AnsweredBeforeError(f"another process has been answering for {PATIENCE:g} s: it answers again later")
        with lock(file.with_suffix(".lock"), PATIENCE, busy):
            answers = cast(list[dict[str, Any]], json.loads(file.read_text()) if file.exists() else [])
            for before in answers:
                if other is not None and before["about"] != about:
                    raise AnsweredBeforeError(f"it has answered about {before['about']}: {other}")
                one, now = Counter(cast(list[str], before["examples"])), Counter(rows)
                changed = max((one - now).total(), (now - one).total())
                if 0 < changed < ENOUGH:
                    raise AnsweredBeforeError(
                        f"fewer than {ENOUGH} of its examples have changed since it answered: it answers again later"
                    )
            yield
            if (answer := {"about": about, "examples": rows}) not in answers:
                write_whole(file, json.dumps([*answers, answer]).encode(), 0o600)


def _digests(client: Federation) -> list[str]:
    """Return a digest of each example and its label."""
    examples, digests = client.examples, list[str]()
    for begin in range(0, len(examples.y), CHUNK):
        raw, y = (part[begin : begin + CHUNK] for part in (examples.raw, examples.y))
        pairs = zip(raw, y, strict=True)
        digests += [sha256(x.numpy().tobytes() + label.numpy().tobytes()).hexdigest()[:32] for x, label in pairs]
    return sorted(digests)
