"""A certificate as a file that anyone can check: what is promised, and every number from which it follows.

The file says what it says for the clients' examples at hand: per client, a digest of the examples, their number, their
mean loss and their mean phi_gamma. With these, ``gamma radius^2 + sum_i lambda_i E[phi_gamma]`` is recomputed from the
file alone, the constants from the model, and the clients' numbers from the data; a client that has only its own data
can check its own line. No example is in the file.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from torch import nn

from wafl.base.errors import PreconditionError
from wafl.base.files import SEAL, write_whole
from wafl.base.fingerprint import code_of, tensors_digest
from wafl.base.norms import norm_name
from wafl.base.options import Count
from wafl.data.federation import Federation
from wafl.promises.in_words import statement
from wafl.promises.proof import Proof
from wafl.promises.published_labels import publish
from wafl.promises.sign import ALGORITHM, sign
from wafl.results.run import Run
from wafl.tasks.task import Loss
from wafl.theory.certificates.certificate import Certificate, Certificates, Metric
from wafl.theory.certificates.certify import certify
from wafl.theory.certificates.mixture import Mixture
from wafl.theory.certificates.rounding import allowance, allowance_of_errors, magnitudes, slack_of_errors
from wafl.theory.certificates.sampling import Domain, Drawn, Sample
from wafl.theory.certificates.upper import ErrorSurrogate, report_for
from wafl.weights import ClientWeights

FORMAT = 1
AT_REST = 1e40
"""A gamma at which nothing moves, and that fits into a file."""
PACKAGES = ("wafl-learn", "torch", "numpy")

CHECKS = {
    "statement": "this file",
    "weights": "this file",
    "values": "this file",
    "model": "the model",
    "constants": "the model",
    "rounding": "the model",
    "examples": "the data",
    "losses": "the model and the data",
    "surrogates": "the model and the data",
    "range": "the model",
    "draws": "attested",
    "labels": "the model and all data",
    "issued": "attested",
    "versions": "attested",
}
"""What each line can be recomputed from; the last are only attested."""


@dataclass(frozen=True)
class Promise:
    """What :func:`issue` returns: ``content`` is what the file holds, as plain values."""

    content: Mapping[str, Any]

    @property
    def values(self) -> dict[float, float]:
        """The promised loss by radius, rounded upwards."""
        return {row["radius"]: row["value"] for row in self.content["certificates"]}

    def save(self, path: str | os.PathLike[str], *, key: str | os.PathLike[str] | None = None) -> Path:
        """Write the certificate, and next to it a page in words, ``NAME.md``.

        Args:
            path: the file, such as ``certificate.json``.
            key: the file of an Ed25519 private key, without a password, that signs it.

        Returns:
            The page.
        """
        file = Path(path)
        if file.suffix == ".md":
            raise ValueError(f"{file} is the name of the page in words: name the certificate {file.stem}.json")
        signature = None if key is None else sign(to_bytes(self.content), key)
        page = file.with_suffix(".md")
        write_whole(file, whole_file(self.content, signature))
        write_whole(page, ("\n".join(self.content["statement"]) + "\n").encode())
        return page

    def __str__(self) -> str:
        return "\n".join(self.content["statement"])


def issue(
    model: Run | nn.Module,
    clients: Federation,
    *,
    radii: Sequence[float],
    norm: float = 2,
    metric: Metric = "loss",
    part: Literal["train", "test"] = "train",
    client_weights: ClientWeights | None = None,
    curvature: float | None = None,
    confidence: float | None = None,
    points: int | None = None,
    loss: Loss | None = None,
) -> Promise:
    """A certificate with everything that is needed to check it; refused if nothing is proven for the model.

    Args:
        model: a model, or a run, which brings its own loss and client weights.
        clients: whose examples are mixed.
        radii: in the unit of the data; at least one.
        norm: the ground norm, 1, 2 or inf.
        metric: ``"loss"``, or ``"error"``, the error rate of a linear classifier.
        part: ``"train"`` or ``"test"`` examples.
        client_weights: the center of the ball; by default the run's final weights, or by examples for a plain model.
        curvature: a bound on L_zz that you have proven yourself.
        confidence: with what probability it holds for the clients' distributions, as in :func:`wafl.certify`.
        points: how many points per label to publish, so that others can tell how far they are (:func:`wafl.audit`); it
            gives away means of groups of examples.
        loss: the loss to use instead of the run's own; cross-entropy for a plain model.

    >>> import wafl
    >>> clients = wafl.load_dataset("digits").partition(num_clients=4, iid=True)
    >>> run = wafl.fit(wafl.models.mlr(clients), clients, wafl.WAFL(gamma=1.0), rounds=2, local_epochs=1)
    >>> promise = issue(run, clients, radii=[0.5])
    >>> [row["proof"] for row in promise.content["certificates"]]
    ['duality']
    """
    if points is not None:
        Count().check("points", points)
        if clients.num_classes is None:
            raise ValueError("points are per label: a regression has none")
        if metric != "loss":
            raise ValueError(f"points are about the loss: leave them out with metric={metric!r}")
    options: dict[str, Any] = {"part": part, "client_weights": client_weights, "loss": loss}
    proofs: dict[str, Any] = {"curvature": curvature, "confidence": confidence, "achieved": False}
    found = certify(model, clients, radii=radii, norm=norm, metric=metric, **proofs, **options)
    if metric == "error" and not found.proven:
        raise PreconditionError(
            "the model only says which Lipschitz constant it has, and what is issued must be proven: make it an "
            "nn.Sequential of known layers (wafl.models.layers)"
        )
    mixture = Mixture.of(model, clients, **options)
    plain = mixture.answers(None, [{}]).value[0].tolist()
    examples, weights = mixture.examples, mixture.weights.tolist()
    sizes, large = examples.num_examples.tolist(), magnitudes(mixture)
    training = replace(mixture, examples=clients.train)
    if metric == "error":
        rows = [_error_row(row, found, mixture, training, max(large)) for row in found.rows]
    else:
        ask = _ask(found, mixture, training, Domain.of(clients), plain)
        rows = [_row(row, found, mixture, ask, max(large)) for row in found.rows]
    named = [
        {"name": name, "weight": weight, "examples": size, "sha256": client_digest(clients, part, place)}
        for place, (name, weight, size) in enumerate(zip(clients.names, weights, sizes, strict=True))
    ]
    most = max(row["rounding"] for row in rows)
    proof, slope = Proof.of(mixture.task, norm, float(found.L_zz) if found.L_zz.proven else math.inf), float(found.L_z)
    labels = {} if points is None else {"labels": publish(mixture, proof, slope, radii, points, most)}
    content: dict[str, Any] = {
        "format": FORMAT,
        "claim": {
            "metric": metric,
            "loss": mixture.task.loss.name,
            "norm": norm_name(norm),
            "unit": clients.unit,
            "part": part,
            "inputs": math.prod(clients.input_shape),
            "confidence": confidence,
            **({} if confidence is None or metric == "error" else {"domain": _plain_domain(Domain.of(clients))}),
        },
        "model": {"sha256": digest_of(model), "parameters": mixture.task.num_params},
        "constants": {
            name: {"value": float(value), "kind": value.kind, "why": value.why}
            for name, value in (("L_z", found.L_z), ("L_zz", found.L_zz))
            if value.proven and metric == "loss"  # the distance to an error is exact without them
        },
        "clients": [
            {**each, "loss": mean, "magnitude": most} for each, mean, most in zip(named, plain, large, strict=True)
        ],
        "certificates": rows,
        **labels,
        "checks": CHECKS,
        "issued": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
    }
    return Promise({"format": FORMAT, "statement": statement(content), **content})


Asked = Callable[[Mapping[str, float] | None], dict[str, Any]]
"""The clients' numbers at a setting, or of the loss."""


def _ask(found: Certificates, mixture: Mixture, training: Mixture, domain: Domain, plain: list[float]) -> Asked:
    def sample(setting: Mapping[str, float] | None) -> dict[str, Any]:
        return {"clients": plain if setting is None else surrogates(mixture, setting, found.norm)}

    def beyond(setting: Mapping[str, float] | None) -> dict[str, Any]:
        drawn = Drawn.ask(training, mixture, domain, found.L_z, found.norm, setting)
        level = (1.0 - float(found.confidence or 0.0)) / len(found)
        told = {"level": level, "most": drawn.sample.most, "seconds": list(drawn.sample.seconds)}
        return {"clients": list(drawn.sample.means), "sampling": {**told, "bets": drawn.bets(level)}}

    return sample if found.confidence is None else beyond


def _row(row: Certificate, found: Certificates, mixture: Mixture, ask: Asked, magnitude: float) -> dict[str, Any]:
    """The smaller of the proven bounds at one radius, with the clients' numbers from which it follows."""
    proven = {"duality": found.proven and math.isfinite(row.value), "slope": found.simple_proven}
    values = {"duality": row.value, "slope": row.simple}
    if row.radius == 0:
        proven = {"slope": True}
    if not any(proven.values()):
        raise PreconditionError(
            "nothing is proven about this model: neither L_z nor L_zz has a bound. Certify a linear model, or a "
            "network of linear layers, convolutions and tanh, sigmoid or ReLU"
        )
    proof = min((name for name, holds in proven.items() if holds), key=values.__getitem__)
    gamma, tolerance, setting = None, None, None
    if proof == "duality":
        gamma, tolerance, setting = row.gamma, row.tolerance, found.setting(row)
    written: dict[str, Any] = {"radius": row.radius, "proof": proof, "gamma": gamma, "tolerance": tolerance}
    written |= ask(setting)
    sizes = mixture.examples.num_examples.tolist()
    value = bound_of(written, mixture.weights.tolist(), sizes, float(found.L_z))
    extra = allowance(mixture.task, mixture.params, sizes, magnitude, row.radius, found.norm, value)
    return {**written, "rounding": extra, "value": math.nextafter(value + extra, math.inf)}


def _error_row(
    row: Certificate, found: Certificates, mixture: Mixture, training: Mixture, magnitude: float
) -> dict[str, Any]:
    """The certified error rate at one radius, with the clients' numbers from which it follows."""
    sizes, weights = mixture.examples.num_examples.tolist(), mixture.weights.tolist()
    slack = slack_of_errors(math.prod(mixture.examples.shape), magnitude)
    gamma = AT_REST if row.radius == 0 else min(max(row.gamma, 1.0 / AT_REST), AT_REST)
    written: dict[str, Any] = {
        "radius": row.radius, "proof": "duality", "gamma": gamma, "tolerance": None, "slack": slack
    }  # fmt: skip
    if found.confidence is None:
        asked = ErrorSurrogate(found.norm, slack=slack)
        written["clients"] = mixture.answers(asked, [{"gamma": gamma}]).value[0].tolist()
    else:
        drawn = Drawn.of_errors(training, mixture, found.norm, gamma, slack=slack)
        level = (1.0 - found.confidence) / len(found)
        told = {"level": level, "most": drawn.sample.most, "seconds": list(drawn.sample.seconds)}
        written |= {"clients": list(drawn.sample.means), "sampling": {**told, "bets": drawn.bets(level)}}
    extra = allowance_of_errors(sizes)
    value = min(math.nextafter(bound_of(written, weights, sizes, 0.0) + extra, math.inf), 1.0)
    return {**written, "rounding": extra, "value": value}


def _plain_domain(domain: Domain) -> dict[str, Any]:
    box = None if domain.box is None else list(domain.box)
    return {"shape": list(domain.shape), "box": box, "num_classes": domain.num_classes}


def surrogates(mixture: Mixture, setting: Mapping[str, float], norm: float) -> list[float]:
    """Each client's mean of an upper bound on phi_gamma."""
    return mixture.answers(report_for(setting, norm), [setting]).value[0].tolist()


def bound_of(row: Mapping[str, Any], weights: Sequence[float], sizes: Sequence[int], slope: float) -> float:
    """The bound of one radius from the clients' numbers, before rounding."""
    mean = math.fsum(weight * value for weight, value in zip(weights, row["clients"], strict=True))
    if drawn := row.get("sampling"):
        sample = Sample(sizes, row["clients"], drawn["seconds"], drawn["most"])
        mean = sample.upper_mean(weights, drawn["bets"], drawn["level"])
    if row["proof"] == "duality":
        return row["gamma"] * row["radius"] ** 2 + mean
    return mean + slope * row["radius"] if row["radius"] > 0 else mean


def client_digest(clients: Federation, part: str, place: int) -> str:
    return (clients.train if part == "train" else clients.test).of_clients([place]).digest()


def digest_of(model: Run | nn.Module) -> str:
    """Of a model's parameters and buffers, its layers, and their code if it is your own."""
    module = model.module if isinstance(model, Run) else model
    layers = [[name, type(layer).__name__, layer.extra_repr()] for name, layer in module.named_modules()]
    state = module.state_dict()
    tensors = [[name, str(value.dtype), list(value.shape)] for name, value in state.items()]
    code = sorted(code_of([type(layer) for layer in module.modules()]).items())
    return tensors_digest(state.values(), [layers, tensors, code])


def to_bytes(content: Mapping[str, Any]) -> bytes:
    """The one way in which a certificate is written, so that each byte can be checked."""
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def whole_file(content: Mapping[str, Any], signature: str | None) -> bytes:
    """What a certificate says, its digest, and its signature, if it has one."""
    digest = {SEAL: sha256(to_bytes(content)).hexdigest()}
    signed = {} if signature is None else {"signature": {"algorithm": ALGORITHM, "of": signature}}
    return to_bytes({**content, **digest, **signed})


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
