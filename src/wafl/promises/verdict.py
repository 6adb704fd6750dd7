"""Represent the result of a check: a line for each checked fact, and one verdict."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from wafl.promises.checker import Line

Verdict = Literal["PROVEN", "ATTESTED", "WRONG"]


@dataclass(frozen=True)
class Checked:
    """The result of checking a file.

    Args:
        lines: the lines of the file; its promises are the lines about a radius.
        clients: a line for each client, by name.
        share: the share of the clients' weight that belongs to clients whose lines were recomputed.
        signed: whether the owner of the given key signed the file.
    """

    VERDICTS: ClassVar[Mapping[Verdict, str]] = {
        "PROVEN": "PROVEN: every value was recomputed from the model and the data",
        "ATTESTED": "ATTESTED: nothing is refuted, but some values are only the word of the issuer",
        "WRONG": "WRONG: do not rely on this file",
    }
    lines: tuple[Line, ...]
    clients: Mapping[str, Line]
    share: float
    signed: bool

    @property
    def verdict(self) -> Verdict:
        """The verdict: ``PROVEN`` if every value was recomputed, ``WRONG`` if a line is, else ``ATTESTED``."""
        return "PROVEN" if self.recomputed else "ATTESTED" if self.ok else "WRONG"

    def verdict_of(self, client: str) -> Verdict:
        """Return the verdict on one client's line; ``WRONG`` for a wrong file.

        The client may have only its own data.
        """
        if client not in self.clients:
            raise ValueError(f"{client!r} is not in the certificate: its clients are {', '.join(self.clients)}")
        if not self.ok:
            return "WRONG"
        return "PROVEN" if self.clients[client].status == "recomputed" else "ATTESTED"

    @property
    def ok(self) -> bool:
        """Whether no line is wrong; lines that are only attested may still be untrue."""
        return all(line.status != "wrong" for line in (*self.lines, *self.clients.values()))

    @property
    def recomputed(self) -> bool:
        """Whether every promise was proven again."""
        return self.ok and all(line.status == "recomputed" for line in self.lines if line.name.startswith("radius "))

    def __str__(self) -> str:
        lines = (*self.lines, *self.clients.values())
        table = [f"{line.name:<12} {line.status:<11} {line.why}" for line in lines]
        return "\n".join([self.VERDICTS[self.verdict], *table, f"recomputed: {self.share:.1%} of the clients' weight"])
