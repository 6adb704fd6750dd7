"""Reads a certificate from a file that may come from anywhere: only what can be computed with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from wafl.base.files import SEAL, read_limited
from wafl.base.json_types import check_types, parsed_table
from wafl.promises.issue import FORMAT, Promise, whole_file
from wafl.promises.published_labels import check_labels

LARGEST_FILE = 2**28
"""The most bytes of a file that is read: about a hundred thousand clients at ten radii."""
LARGEST_NUMBER = 1e50
"""Products and squares of such numbers are finite, so no line of a check overflows."""
MOMENTS = ("seconds", "bets")

NUMBERS: dict[str, Any] = {
    "format": int,
    "statement": list[str],
    "claim": {
        "metric": Literal["loss", "error"],
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
    "slack?": float,
    "clients": list[float],
    "rounding": float,
    "value": float,
    "sampling?": {"level": float, "most": float, "seconds": list[float], "bets": list[float]},
}
DOMAIN: dict[str, Any] = {"shape": list[int], "box": tuple[float, float], "num_classes": int}


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
    of_errors = content["claim"]["metric"] == "error"
    if domain is not None:
        check_types(domain, DOMAIN, "domain")
    for row in content["certificates"]:
        drawn = row.get("sampling", {})
        if any(len(each) != count for each in (row["clients"], *(drawn.get(k, row["clients"]) for k in MOMENTS))):
            raise ValueError("its certificates do not have one number per client")
        if of_errors != ("slack" in row) or (of_errors and row["gamma"] is None):
            raise ValueError("its metric and its certificates do not belong together")
        if (not drawn) != (content["claim"]["confidence"] is None) or (domain is None) != (not drawn or of_errors):
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
        if "sampling" in row and not all(0.0 <= bet * row["sampling"]["most"] < 1.0 for bet in row["sampling"]["bets"]):
            raise ValueError("its bets must lie between 0 and 1 over the largest possible number")


def _check_size(value: Any) -> None:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:  # pyright: ignore[reportUnknownVariableType]
            _check_size(each)
    elif isinstance(value, int | float) and abs(value) > LARGEST_NUMBER:
        raise ValueError(f"a number in it is beyond {LARGEST_NUMBER:g}")
