"""Verifies a file: reads it, checks its signature, and says line by line what was proven again."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from wafl.data.federation import Federation
from wafl.promises.check import Checker, Line, module_and_loss, read_model
from wafl.promises.in_words import Facts
from wafl.promises.promise import Promise, to_bytes
from wafl.promises.read import read_file
from wafl.promises.sign import is_signed_by
from wafl.results.run import Run
from wafl.tasks.task import Loss


@dataclass(frozen=True)
class Verification:
    """What :func:`wafl.verify` found.

    Args:
        lines: of the certificate: its model, each radius, and what is said besides.
        clients: a line for each client, by name.
        share: of the weight that belongs to clients whose numbers were recomputed.
        signed: whether the owner of the given key signed the file.
        promise: what the file says; as text, it is the statement in words.
    """

    lines: tuple[Line, ...]
    clients: Mapping[str, Line]
    share: float
    signed: bool
    promise: Promise

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
        return "\n".join([*table, f"recomputed: {self.share:.1%} of the clients' weight"])


def verify(
    file: str | os.PathLike[str],
    *,
    model: Run | nn.Module | None = None,
    data: Federation | None = None,
    key: str | os.PathLike[str] | None = None,
    loss: Loss | None = None,
) -> Verification:
    """Prove a certificate again, as far as the model and the data at hand allow.

    Args:
        file: what :meth:`Promise.save` wrote, of :func:`wafl.issue` or :func:`wafl.issue_next_client`.
        model: the model that it is about.
        data: clients that it is about, all or some of them, known by their names.
        key: the file of an Ed25519 public key: a file that its owner did not sign, byte by byte, is refused.
        loss: the loss to use instead of the run's own; cross-entropy for a plain model.

    Returns:
        Every line of the certificate, with what was found.
    """
    path = Path(file)
    promise, signature = read_file(path)
    if key is not None and signature is None:
        raise ValueError(f"{path} is not signed: ask who issued it for a signed one, or leave the key out")
    if key is not None and not is_signed_by(to_bytes(promise.content), signature or "", key):
        raise ValueError(f"{path} was not signed with this key, or was changed since: do not rely on it")
    return replace(check(promise, model, data, loss), signed=key is not None)


def check(promise: Promise, model: Run | nn.Module | None, data: Federation | None, loss: Loss | None) -> Verification:
    """Every line of a certificate against what can be proven."""
    claim, names = promise.parts.claim, [client.name for client in promise.parts.claim.clients]
    if data is not None and not set(data.names) & set(names):
        raise ValueError(
            f"the data are those of {', '.join(data.names[:5])}, and the certificate is about {', '.join(names[:5])}: "
            "give data of clients that it is about"
        )
    about, proof = Line("model", "attested", "not checked: give the model"), None
    facts = Facts(unit=None if data is None else data.unit)
    if model is not None:
        module, known_loss = module_and_loss(model, loss)
        proof, about = read_model(claim, module, known_loss, data)
        parameters = sum(value.numel() for value in module.parameters() if value.requires_grad)
        facts = replace(facts, loss=known_loss.name, parameters=parameters)
    checker = Checker(promise.parts, proof, data, about.status == "wrong")
    clients = {client.name: checker.client(index) for index, client in enumerate(claim.clients)}
    done = [client.weight for client in claim.clients if clients[client.name].status == "recomputed"]
    rows = [checker.row(row, clients) for row in claim.rows]
    facts = replace(facts, proven=all(line.status == "recomputed" for line in rows))
    lines = (about, *rows, *checker.rest(clients))
    return Verification(lines, clients, math.fsum(done), False, Promise(promise.parts, facts))
