"""Derive statements about the next client from the replies of calibration clients.

There are K clients of the population: all invited clients, except clients that reported too few examples. Each client
without a usable reply counts as infinity. Client k has a number c_k. With probability `confidence`, the next client's
number is at most the c_k with rank ``ceil(confidence (K + 1)) + liars``. For its distribution, c_k is an upper bound
that also allows for the client's sampling error; it takes half of the probability of a failure.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from wafl.base.describe import rounded_up, some
from wafl.base.errors import PreconditionError
from wafl.base.files import write_whole
from wafl.base.norms import norm_name
from wafl.base.options import frozen
from wafl.receipts.questions import Questions
from wafl.receipts.reply import Reply
from wafl.sets.answers import Answer
from wafl.sets.thresholds import on_grid
from wafl.theory.population.levels import USUAL, exact, missing_line, supported, with_confidence

NOUNS = {"loss": "loss", "error": "error rate"}


@dataclass(frozen=True)
class Statement:
    """One statement about the next client, valid separately from the others."""

    kind: Literal["next", "sets"]
    radius: float
    own_sampling: bool
    value: float | None
    """The bound, or the threshold of the sets; infinity if nothing follows, None if too few clients were invited."""
    confidence: float | None
    """The probability of the statement; None for the next example."""
    sentence: str

    @property
    def content(self) -> dict[str, Any]:
        """The statement as plain values."""
        value = "inf" if self.value == math.inf else self.value
        return {**vars(self), "value": value}


@frozen
class Conclusion:
    """Statements about the next client, from the replies of all invited clients."""

    questions: Annotated[Questions, "What was asked."]
    model: Annotated[str, "The digest of the model."]
    unit: Annotated[str, "The unit of the data."]
    replies: Annotated[Mapping[str, Reply], "The replies, by client."]
    small: Annotated[tuple[str, ...], "Clients with too few examples, which do not belong to the population."] = ()
    missing: Annotated[tuple[str, ...], "Invited clients without a usable reply: each counts as infinity."] = ()

    @property
    def count(self) -> int:
        """The number K of clients."""
        return len(self.replies) + len(self.missing)

    @property
    def next(self) -> tuple[Statement, ...]:
        """The bound on the next client's loss or error, at each radius."""
        return tuple(
            self._next(index, own_sampling)
            for index, radius in enumerate(self.questions.radii)
            for own_sampling in ((False, True) if self.questions.own_sampling and radius == 0 else (False,))
        )

    @property
    def sets(self) -> tuple[Statement, ...]:
        """The thresholds of prediction sets, at each radius."""
        both = self.questions.own_sampling and self.questions.about == "client"
        return tuple(
            self._sets(index, own_sampling)
            for index, radius in enumerate(self.questions.radii)
            for own_sampling in ((False, True) if both and radius == 0 else (False,))
        )

    def _next(self, index: int, own_sampling: bool) -> Statement:
        questions, count, radius = self.questions, self.count, self.questions.radii[index]
        where = f"on its {'distribution' if own_sampling else 'examples'}"
        if radius > 0:
            where += f", moved by at most {radius:g} ({norm_name(questions.norm)}, W_2, {self.unit})"
        noun = f"{'worst ' if radius > 0 else ''}{NOUNS[questions.metric]}"
        refusal = f"nothing follows about the {noun} of {questions.who} {where}: "
        try:
            level = supported(questions.confidence, count, own_sampling=own_sampling, liars=questions.liars)
        except PreconditionError as error:
            return Statement("next", radius, own_sampling, None, None, f"{refusal}{error}")
        if level <= 0.0:
            return Statement("next", radius, own_sampling, None, None, f"{refusal}{count} clients are too few")
        numbers = [(reply.uppers if own_sampling else reply.values)[index] for reply in self.replies.values()]
        ordered = sorted([*(math.inf if each is None else each for each in numbers), *[math.inf] * len(self.missing)])
        share = (1 + exact(level)) / 2 if own_sampling else exact(level)
        value = ordered[math.ceil(share * (count + 1)) + questions.liars - 1]
        how = with_confidence(level, count, fallen=questions.confidence is None and level < USUAL)
        if value == math.inf:
            return Statement("next", radius, own_sampling, value, level, f"{refusal}too few clients replied ({how})")
        estimated = radius > 0 and any(reply.reason for reply in self.replies.values())
        article = "an estimated" if estimated else "an" if noun == "error rate" else "a"
        sentence = f"{questions.who} has {article} {noun} of at most {rounded_up(value)} {where}, {how}"
        return Statement("next", radius, own_sampling, value, level, sentence)

    def _sets(self, index: int, own_sampling: bool) -> Statement:
        questions, radius = self.questions, self.questions.radii[index]
        try:
            target = questions.target(index, own_sampling=own_sampling).supported(self.count)
            holds = target.holds(self.count)
        except PreconditionError as refusal:
            return Statement("sets", radius, own_sampling, None, None, f"no prediction sets: {refusal}")
        answers = [Answer(reply.examples, reply.above[index]) for reply in self.replies.values()]
        threshold = on_grid(questions.thresholds, answers, holds)
        sentence = target.sentence(self.count, self.unit, questions.who)
        how = (
            f"each label whose {questions.score} is at most {threshold:.6g}" if threshold < math.inf else "every label"
        )
        return Statement("sets", radius, own_sampling, threshold, target.confidence, f"{sentence}; a set holds {how}")

    @property
    def content(self) -> dict[str, Any]:
        """The conclusion as plain values."""
        return {
            "format": 1,
            "model": self.model,
            "unit": self.unit,
            "questions": self.questions.content,
            "statements": [each.content for each in (*self.next, *self.sets)],
            "replies": {name: reply.content for name, reply in self.replies.items()},
            "small": list(self.small),
            "missing": list(self.missing),
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the statements and the replies to a JSON file."""
        write_whole(Path(path), (json.dumps(self.content, indent=1, allow_nan=False) + "\n").encode())
        return Path(path)

    def lines(self, kind: Literal["next", "sets"]) -> str:
        """Return the sentences of one kind, with their assumptions."""
        rows = [each.sentence for each in (self.next if kind == "next" else self.sets)]
        if len(rows) > 1:
            rows.append("each of these statements holds with its own probability, not all of them together")
        if self.questions.liars:
            rows.append(f"this stays true whatever {self.questions.liars} of the clients answered")
        if self.missing:
            rows.append(missing_line(self.missing, self.count))
        if self.small:
            rows.append(f"left out, with fewer than {self.questions.minimum} examples: {some(self.small, 8)}")
        return "\n".join(rows)

    def __str__(self) -> str:
        return f"{self.lines('next')}\n{self.lines('sets')}"
