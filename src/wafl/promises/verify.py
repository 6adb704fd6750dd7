"""Verify a certificate: prove it again line by line, from the claim, the model and the data alone.

No code is shared with the search of :func:`wafl.certify`, and an independent attack tries to refute the claim.

The proof, row by row: no distribution within ``radius`` of the clients' mixture has a larger expected loss than
``gamma radius^p + sum_i lambda_i E_i[phi_gamma]``, at any gamma. Each client's line checks that its mean of an upper
bound on phi_gamma (:mod:`wafl.promises.quantities`) is no larger than the published one: a client needs only its own
data. The consequences for the distributions behind the examples, and for the population behind these clients, are in
:mod:`wafl.promises.bets`. Where both are draws, half of delta is spent on the clients' examples, equally, and the other
half on the clients.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wafl.data.examples import Examples
from wafl.data.federation import Federation
from wafl.promises.attack import Unproven, moved
from wafl.promises.checker import Checker, Line
from wafl.promises.known import Known, in_float64, read
from wafl.promises.promise import (
    NORMS,
    Claim,
    Facts,
    Promise,
    digest_of,
    examples_of,
    to_bytes,
)
from wafl.promises.quantities import quantity_of
from wafl.promises.read import read_file
from wafl.promises.sign import is_signed_by
from wafl.promises.verdict import Checked
from wafl.results.run import Run
from wafl.tasks.losses import OutputLoss, output_loss, spelled
from wafl.tasks.structure.graph import is_leaf, plain_graph
from wafl.tasks.structure.trace import agrees
from wafl.tasks.task import Loss

TRACED = "assuming that global state does not change, and that the module computes what its graph computes"


def module_and_loss(model: Run | nn.Module, loss: Loss | None) -> tuple[nn.Module, OutputLoss]:
    """Return the module of a model or a run, and its loss unless another one is given."""
    module, usual = (model.module, model.loss) if isinstance(model, Run) else (model, "cross_entropy")
    return module, output_loss(usual if loss is None else loss)


def read_model(
    claim: Claim, version: int, module: nn.Module, loss: Any, data: Federation | None
) -> tuple[Known | None, Line]:
    """Return the proof for the model, if it is the certified model, and the model's line."""
    digest = digest_of(module, version)
    name = f"SHA-256 {digest[:16]}..."
    if digest != claim.model:
        why = f"this model has {name}; the same layers may have another digest with another version of torch"
        return None, Line("model", "wrong", why)
    proof = read(module, loss)
    if isinstance(proof, str):
        return None, Line("model", "attested", f"{name}; nothing is proven, because {proof}")
    if quantity_of(claim.metric).needs_classes and not proof.classifies:
        return None, Line("model", "attested", f"{name}; no proof is known here for its loss")
    if data is None:
        return proof, Line("model", "attested", f"{name}; give data to prove something")
    examples = examples_of(data, claim.part)
    x = examples.rows(torch.arange(1), torch.float64)
    whole = in_float64(module)
    try:
        with torch.no_grad():
            outputs = whole(x)
    except RuntimeError as error:
        raise ValueError(f"examples of shape {tuple(x.shape[1:])} do not fit the model: {error}") from error
    y, count = examples.y, outputs.shape[-1]
    if not (not y.is_floating_point() and int(y.max()) < count if proof.classifies else y[0].numel() == count):
        raise ValueError(f"labels or targets do not fit {count} outputs and {proof.loss.name}: give its data and loss")
    if outputs.ndim != 2 or not agrees(whole, proof.plain, _compared(claim, proof, examples)):
        return None, Line("model", "attested", f"{name}; it computes something else than its layers")
    traced = any(not is_leaf(node.module) for node in plain_graph(module).nodes)
    return proof, Line("model", "recomputed", f"{name}; {TRACED}" if traced else name)


def _compared(claim: Claim, model: Known, examples: Examples) -> Iterator[Tensor]:
    """Yield all examples, a few at a time, and the first of them moved along gradients by each radius."""
    for rows in torch.arange(len(examples.y)).split(model.at_once):
        x = examples.rows(rows, torch.float64)
        yield x
        if int(rows[0]) == 0:
            radii = [radius for radius in claim.radii if radius > 0]
            points = moved(model, NORMS[claim.norm], x, examples.y[rows], radii)
            yield from (point for point in points if bool(model.plain(point).isfinite().all()))


@dataclass(frozen=True)
class Verification(Checked):
    """The result of :func:`wafl.verify`.

    Args:
        lines: the lines of the certificate: its model, each radius, and other information.
        clients: a line for each client, by name.
        share: the total weight of clients with recomputed numbers.
        signed: whether the owner of the given key signed the file.
        promise: the certificate in the file; as text, it is the statement in words.
    """

    promise: Promise


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
        file: a file that the ``save`` method of a certificate, or of a result of :func:`wafl.next_client`, wrote.
        model: the certified model.
        data: clients of the certificate, all or some of them, matched by their names.
        key: the file of an Ed25519 public key; ValueError is raised unless its owner signed the file byte by byte.
        loss: the loss to use instead of the run's loss; cross-entropy for a plain model.

    Returns:
        Every line of the certificate, with its result.
    """
    path = Path(file)
    promise, signature = read_file(path)
    if key is not None and signature is None:
        raise ValueError(f"{path} is not signed: ask its issuer for a signed file, or leave the key out")
    if key is not None and not is_signed_by(to_bytes(promise.content), signature or "", key):
        raise ValueError(f"{path} was not signed with this key, or was changed since: do not rely on it")
    return replace(check(promise, model, data, loss), signed=key is not None)


def check(promise: Promise, model: Run | nn.Module | None, data: Federation | None, loss: Loss | None) -> Verification:
    """Check every line of a certificate."""
    claim, names = promise.parts.claim, [client.name for client in promise.parts.claim.clients]
    if data is not None and not set(data.names) & set(names):
        raise ValueError(
            f"the data belong to {', '.join(data.names[:5])}, and the certificate is about {', '.join(names[:5])}: "
            "pass data of these clients"
        )
    about, proof, unproven = Line("model", "attested", "not checked: pass the model"), None, None
    facts = Facts(unit=None if data is None else data.unit)
    if model is not None:
        module, known_loss = module_and_loss(model, loss)
        proof, about = read_model(claim, promise.parts.format, module, known_loss, data)
        parameters = sum(value.numel() for value in module.parameters() if value.requires_grad)
        name = spelled(known_loss) or f"{known_loss.name}, a loss that is not one of wafl's own"
        facts = replace(facts, loss=name, parameters=parameters)
        if about.status != "wrong" and (proof is None or promise.parts.attested is not None):
            unproven = Unproven(in_float64(module), known_loss)
    checker = Checker(promise.parts, proof, data, about.status == "wrong", unproven)
    clients = {client.name: checker.client(index) for index, client in enumerate(claim.clients)}
    done = [client.weight for client in claim.clients if clients[client.name].status == "recomputed"]
    rows = [checker.row(row, clients) for row in claim.rows]
    facts = replace(facts, proven=all(line.status == "recomputed" for line in rows))
    lines = (about, *rows, *checker.rest(clients))
    return Verification(lines, clients, math.fsum(done), False, Promise(promise.parts, facts))
