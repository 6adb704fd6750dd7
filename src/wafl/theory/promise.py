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

from wafl.core.errors import PreconditionError
from wafl.core.files import SEAL, read_limited, write_whole
from wafl.core.fingerprint import code_of, tensors_digest
from wafl.core.norms import norm_name
from wafl.core.options import Count
from wafl.core.shapes import check_types, parsed_table
from wafl.core.signing import ALGORITHM, sign
from wafl.core.task import Loss
from wafl.data.federation import Federation
from wafl.run import Run
from wafl.theory.certificates import Certificate, Certificates, certify
from wafl.theory.labels import check_labels, publish
from wafl.theory.mixture import Mixture
from wafl.theory.proof import Proof
from wafl.theory.rounding import allowance, magnitudes
from wafl.theory.sampling import Domain, Drawn, Sample
from wafl.theory.statement import statement
from wafl.theory.upper import report_for
from wafl.weights import ClientWeights

FORMAT = 1
LARGEST_FILE = 2**28
"""The most bytes of a file that is read: about a hundred thousand clients at ten radii."""
LARGEST_NUMBER = 1e50
"""Products and squares of such numbers are finite, so no line of a check overflows."""
MOMENTS = ("seconds", "centers")
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

NUMBERS: dict[str, Any] = {
    "format": int,
    "statement": list[str],
    "claim": {
        "metric": str,
        "loss": str,
        "norm": str,
        "unit": str,
        "part": Literal["train", "test"],
        "inputs": int,
        "confidence": float | None,
        "domain?": dict[str, Any],
    },
    "model": {"sha256": str, "parameters": int},
    "constants": dict[str, dict[str, Any]],
    "clients": list[dict[str, Any]],
    "certificates": list[dict[str, Any]],
    "checks": dict[str, str],
    "labels?": dict[str, Any],
    "issued": str,
    "versions": dict[str, str | None],
}
CONSTANT: dict[str, Any] = {"value": float, "kind": str, "why": str}
CLIENT: dict[str, Any] = {
    "name": str,
    "weight": float,
    "examples": int,
    "sha256": str,
    "loss": float,
    "magnitude": float,
}
ROW: dict[str, Any] = {
    "radius": float,
    "proof": Literal["duality", "slope"],
    "gamma": float | None,
    "tolerance": float | None,
    "clients": list[float],
    "rounding": float,
    "value": float,
    "sampling?": {"level": float, "most": float, "seconds": list[float], "centers": list[float]},
}
DOMAIN: dict[str, Any] = {"shape": list[int], "box": tuple[float, float], "num_classes": int}


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
    options: dict[str, Any] = {"part": part, "client_weights": client_weights, "loss": loss}
    proofs: dict[str, Any] = {"curvature": curvature, "confidence": confidence, "achieved": False}
    found = certify(model, clients, radii=radii, norm=norm, **proofs, **options)
    mixture = Mixture.of(model, clients, **options)
    plain = mixture.answers(None, [{}]).value[0].tolist()
    examples, weights = mixture.examples, mixture.weights.tolist()
    sizes, large = examples.num_examples.tolist(), magnitudes(mixture)
    ask = _ask(found, mixture, replace(mixture, examples=clients.train), Domain.of(clients), plain)
    rows = [_row(row, found, mixture, ask, max(large)) for row in found.rows]
    named = [
        {"name": name, "weight": weight, "examples": size, "sha256": client_digest(clients, part, place)}
        for place, (name, weight, size) in enumerate(zip(clients.names, weights, sizes, strict=True))
    ]
    most = max(row["rounding"] for row in rows)
    proof, slope = Proof(norm, float(found.L_zz) if found.proven else math.inf), float(found.L_z)
    labels = {} if points is None else {"labels": publish(mixture, proof, slope, radii, points, most)}
    content: dict[str, Any] = {
        "format": FORMAT,
        "claim": {
            "metric": "loss",
            "loss": mixture.task.loss.name,
            "norm": norm_name(norm),
            "unit": clients.unit,
            "part": part,
            "inputs": math.prod(clients.input_shape),
            "confidence": confidence,
            **({} if confidence is None else {"domain": _plain_domain(Domain.of(clients))}),
        },
        "model": {"sha256": digest_of(model), "parameters": mixture.task.num_params},
        "constants": {
            name: {"value": float(value), "kind": value.kind, "why": value.why}
            for name, value in (("L_z", found.L_z), ("L_zz", found.L_zz))
            if value.proven
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
        return {"clients": list(drawn.sample.means), "sampling": {**told, "centers": list(drawn.centers)}}

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
        mean = sample.upper_mean(weights, drawn["centers"], drawn["level"])
    if row["proof"] == "duality":
        return row["gamma"] * row["radius"] ** 2 + mean
    return mean + slope * row["radius"] if row["radius"] > 0 else mean


def client_digest(clients: Federation, part: str, place: int) -> str:
    return (clients.train if part == "train" else clients.test).of_clients([place]).digest()


def digest_of(model: Run | nn.Module) -> str:
    """Of a model's parameters and buffers, its layers, and their code if it is your own."""
    module = model.model if isinstance(model, Run) else model
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


def read_file(path: Path) -> tuple[Promise, str | None]:
    """The certificate in a file, which may come from anywhere, and its signature, if it has one."""
    try:
        return read_promise(read_limited(path, LARGEST_FILE))
    except ValueError as error:
        raise ValueError(f"{path} is not a certificate, or was changed: {error}") from error


def read_promise(data: bytes) -> tuple[Promise, str | None]:
    """What a file holds, and its signature, if it has one; a ValueError if it is not a certificate."""
    content = parsed_table(data)
    if content.get("format") != FORMAT:
        raise ValueError(f"it has format {content.get('format')}, this version reads {FORMAT}: update wafl-learn")
    signature: Any = content.pop("signature", None)
    if signature is not None:
        check_types(signature, {"algorithm": str, "of": str}, "signature")
        signature = signature["of"]
    content.pop(SEAL, None)
    if data != whole_file(content, signature):
        raise ValueError("its digest differs, or it was written by another program")
    check_types(content, NUMBERS)
    for where, kind, each in (
        *(("constants", CONSTANT, value) for value in content["constants"].values()),
        *(("clients", CLIENT, value) for value in content["clients"]),
        *(("certificates", ROW, value) for value in content["certificates"]),
    ):
        check_types(each, kind, where)
    _check_lengths(content)
    _check_ranges(content)
    return Promise(content), signature


def _check_lengths(content: Mapping[str, Any]) -> None:
    """One number per client everywhere; and what a confidence needs, in all rows or in none."""
    if "labels" in content:
        check_labels(content["labels"], content["claim"]["inputs"])
    count, domain = len(content["clients"]), content["claim"].get("domain")
    if domain is not None:
        check_types(domain, DOMAIN, "domain")
    for row in content["certificates"]:
        drawn = row.get("sampling", {})
        if any(len(each) != count for each in (row["clients"], *(drawn.get(k, row["clients"]) for k in MOMENTS))):
            raise ValueError("its certificates do not have one number per client")
        if (not drawn) != (content["claim"]["confidence"] is None) or (domain is None) != (not drawn):
            raise ValueError("its confidence and its sampling do not belong together")


def _check_ranges(content: Mapping[str, Any]) -> None:
    """Only numbers that can be computed with; whether they prove anything is for :func:`wafl.verify` to say."""
    _check_size(content)
    if not content["clients"] or not content["certificates"]:
        raise ValueError("it is about no client, or promises nothing")
    confidence = content["claim"]["confidence"]
    if confidence is not None and not 0.0 < confidence < 1.0:
        raise ValueError(f"its confidence {confidence:g} must lie between 0 and 1")
    for client in content["clients"]:
        if client["examples"] < 1:
            raise ValueError(f"a client has {client['examples']} examples: it must have at least 1")
    for row in content["certificates"]:
        if row["tolerance"] is not None and row["tolerance"] < 0.0:
            raise ValueError(f"its tolerance {row['tolerance']:g} must not be negative")
        if "sampling" in row and not 0.0 < row["sampling"]["level"] < 1.0:
            raise ValueError(f"its level {row['sampling']['level']:g} must lie between 0 and 1")


def _check_size(value: Any) -> None:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:  # pyright: ignore[reportUnknownVariableType]
            _check_size(each)
    elif isinstance(value, int | float) and abs(value) > LARGEST_NUMBER:
        raise ValueError(f"a number in it is beyond {LARGEST_NUMBER:g}")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
