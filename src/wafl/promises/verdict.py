"""What a checker finds: a line for each thing that it looked at, and one verdict."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from wafl.promises.checker import Line

Verdict = Literal["PROVEN", "ATTESTED", "WRONG"]


@dataclass(frozen=True)
class Checked:
    """What was found in a file.

    Args:
        lines: of the file: those about a radius are what it promises.
        clients: a line for each client, by name.
        share: of the clients' weight that belongs to clients whose lines were recomputed.
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
        """``PROVEN`` if every value was recomputed, ``WRONG`` if a line is, otherwise ``ATTESTED``."""
        return "PROVEN" if self.recomputed else "ATTESTED" if self.ok else "WRONG"

    def verdict_of(self, client: str) -> Verdict:
        """Return the verdict on the line of one client, who may have only its own data; ``WRONG`` for a wrong file."""
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
        """Whether all that is promised was proven again."""
        return self.ok and all(line.status == "recomputed" for line in self.lines if line.name.startswith("radius "))

    def __str__(self) -> str:
        lines = (*self.lines, *self.clients.values())
        table = [f"{line.name:<12} {line.status:<11} {line.why}" for line in lines]
        return "\n".join([self.VERDICTS[self.verdict], *table, f"recomputed: {self.share:.1%} of the clients' weight"])
