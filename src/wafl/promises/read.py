"""Read a certificate from an untrusted file: exactly the known fields, and nothing else."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from wafl.base.files import SEAL, read_limited
from wafl.base.json_types import as_type, check_types, parsed_table
from wafl.promises.bets import STAKES
from wafl.promises.promise import FORMATS, Content, Promise, to_bytes, whole_file
from wafl.promises.quantities import quantity_of
from wafl.promises.sign import ALGORITHM

LARGEST_FILE = 2**28
"""The maximum size of a file in bytes: about a hundred thousand clients at ten radii."""
LARGEST_NUMBER = 1e50
"""The largest number; products and squares of numbers up to it are finite, so no line of a check overflows."""
SMALLEST = 1e-100
"""The smallest positive radius and gamma; the squares of smaller ones underflow."""
DIGEST, SIGNATURE = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{128}")
LONGEST_REASON = 1000


def read_file(path: Path) -> tuple[Promise, str | None]:
    """Read the certificate in an untrusted file, and its signature, if it has one."""
    if not path.exists():
        raise FileNotFoundError(f"{path} is not a file: pass a certificate, which wafl certify writes")
    try:
        return read_promise(read_limited(path, LARGEST_FILE))
    except ValueError as error:
        raise ValueError(f"{path} is not a certificate, or was changed: {error}") from error


def read_promise(data: bytes) -> tuple[Promise, str | None]:
    """Return the certificate in a file's bytes, and its signature, if any; raise ValueError for other bytes."""
    content = parsed_table(data)
    if "kind" in content:
        raise ValueError(f"it is a {content['kind']!a}: wafl.receipts.verify checks what wafl merge writes")
    if content.get("format") not in FORMATS:
        raise ValueError(_of_another_format(content.get("format")))
    signature: Any = content.pop("signature", None)
    if signature is not None:
        check_types(signature, {"algorithm": str, "of": str}, "signature")
        if signature["algorithm"] != ALGORITHM:
            raise ValueError(f"it is signed with {signature['algorithm']!r}, not with {ALGORITHM}")
        signature = signature["of"]
        if not SIGNATURE.fullmatch(signature):
            raise ValueError("its signature is not 128 lowercase hexadecimal digits")
    content.pop(SEAL, None)
    if data != whole_file(content, signature):
        raise ValueError("its digest differs, or it was written by another program")
    promise = Promise(as_type(Content, {"attested": None, **content} if content["format"] == 2 else content))
    # The rewritten file contains only known fields, with numbers of the right type.
    if to_bytes(promise.content) != to_bytes(content):
        raise ValueError("it has a field that no certificate has, fields in another order, or numbers of other types")
    parts = promise.parts
    for complaint in (*_complaints(parts), *_of_witnesses(parts), *_of_labels(parts), *_sizes(promise.content)):
        raise ValueError(complaint)
    return promise, signature


def _of_another_format(version: object) -> str:
    if version == 1:
        return (
            "it has format 1, whose files could be forged. Its issuer can issue it again, from the same model "
            "and data: wafl certify RUN, or wafl.certify(run, clients, radii=[...]).save(file)"
        )
    if not isinstance(version, int):
        return "it does not state its format: pass a file that wafl certify or certificate.save wrote"
    return f"it has format {version}, this version reads {' and '.join(map(str, FORMATS))}: update wafl-learn"


def _complaints(content: Content) -> Iterator[str]:
    """Yield the faults of a claim whose numbers have the right types, and of its issue date."""
    claim = content.claim
    names = [*(client.name for client in claim.clients), *claim.missing]
    weights = [client.weight for client in claim.clients]
    rows, of_all = [(row.about, row.radius) for row in claim.rows], claim.part == "all"
    if not rows or len(set(rows)) != len(rows):
        yield "it promises nothing, or something twice"
    if any((row.about != "mixture") != of_all for row in claim.rows) or (of_all and len({r for _, r in rows}) > 1):
        yield "what it promises is not about its part, or about all clients at several radii"
    if (claim.confidence is None) == (of_all or claim.own_sampling) or (claim.own_sampling and claim.part == "train"):
        yield "its confidence, its part and its sampling do not belong together"
    if claim.confidence is not None and not 0.0 < claim.confidence < 1.0:
        yield f"its confidence {claim.confidence:g} must lie between 0 and 1"
    lower = [row.confidence for row in claim.rows if row.confidence is not None]
    if lower and not (of_all and all(0.0 < each < (claim.confidence or 0.0) for each in lower)):
        yield "the confidence of a row must lie between 0 and the certificate's, and is for all clients"
    shares = [(row.about == "share", row.share) for row in claim.rows]
    if any(wanted != (share is not None) or (share is not None and not 0.0 < share < 1.0) for wanted, share in shares):
        yield "a share of clients is missing, there without a use, or not between 0 and 1"
    if not claim.clients or len(set(names)) != len(names):
        yield "it is about no client, or a client is listed twice"
    if claim.missing and not of_all:
        yield "only a certificate about all clients can have missing ones"
    if strange := [name for name in names if not name.isprintable()]:  # a line break could look like a verdict
        yield f"the name {strange[0]!a} of a client cannot be printed: choose another name"
    if not all(0.0 <= weight <= 1.0 for weight in weights) or abs(math.fsum(weights) - 1.0) > 1e-9:
        yield "its weights are not shares that sum to 1"
    if of_all and len(set(weights)) > 1:
        yield "clients that were drawn from all have the same weight"
    if any(not 1 <= client.examples < 2**40 for client in claim.clients):
        yield "a client has no example, or more than anyone has"
    if not all(map(DIGEST.fullmatch, [claim.model, *(client.sha256 for client in claim.clients)])):
        yield "a digest is not one of SHA-256"
    if not is_time(content.issued):
        yield "it does not say when it was issued"


def is_time(text: str) -> bool:
    """Return whether a text is a time with its time zone, in the form that Python writes."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return False
    return when.tzinfo is not None and when.isoformat() == text


def _of_witnesses(content: Content) -> Iterator[str]:
    claim, radii = content.claim, content.claim.radii
    if content.attested is not None:
        if not (content.attested.isprintable() and 0 < len(content.attested) <= LONGEST_REASON):
            yield "the reason why nothing is proven is empty, too long, or cannot be printed"
        if content.witnesses or content.labels is not None or claim.confidence is not None or claim.part == "all":
            yield "without a proof, there are no witnesses, labels or statements about draws"
        return
    if len(content.witnesses) != len(radii):
        yield "its witnesses are not one per radius"
    for radius, witness in zip(radii, content.witnesses, strict=False):
        draws, moves = witness.draws, quantity_of(claim.metric).needs_gamma(claim.power, radius)
        each = [witness.means] if draws is None else [witness.means, draws.bets, *draws.paid]
        if {len(numbers) for numbers in each} != {len(claim.clients)} or len(each) not in (1, 2 + len(STAKES)):
            yield "its witnesses do not have one number per client"
        if (draws is None) == claim.own_sampling or (witness.bet is None) == ("mean" in {r.about for r in claim.rows}):
            yield "its bets and what it promises do not belong together"
        if (witness.gamma is not None) != moves or witness.gamma == 0.0:
            yield f"radius {radius:g}: gamma is missing, 0, or there without a use"
        if 0.0 < radius < SMALLEST or 0.0 < (witness.gamma or 0.0) < SMALLEST:
            yield f"radius {radius:g}: it or its gamma is so small that its square is lost"


def _of_labels(content: Content) -> Iterator[str]:
    claim, labels = content.claim, content.labels
    if labels is None:
        return
    if not quantity_of(claim.metric).has_points or (claim.power, claim.confidence) != (2, None):
        yield "its labels are not about its claim"
    for each in labels.labels:
        same = len(each.points) == len(each.weights) > 0 and len({len(point) for point in each.points}) == 1
        sizes = [drawn.examples for drawn in each.resamples]
        same = same and sizes == sorted(set(sizes)) and 0 not in sizes and abs(math.fsum(each.weights) - 1.0) <= 1e-9
        if not same or len(each.surrogates) != len(labels.gammas) or each.label < 0:
            yield f"what is published about label {each.label} does not fit together"
    if len({each.label for each in labels.labels}) != len(labels.labels) or not all(g > 0 for g in labels.gammas):
        yield "a label is listed twice, or a gamma is not above 0"


def _sizes(value: Any, inside: str = "") -> Iterator[str]:
    """Yield a fault for each number that is too large or negative; coordinates of points may be negative."""
    if isinstance(value, dict | list | tuple):
        parts: Any = value.items() if isinstance(value, dict) else ((inside, each) for each in value)  # pyright: ignore[reportUnknownVariableType]
        for name, each in parts:
            yield from _sizes(each, name)
    elif isinstance(value, float) and not abs(value) <= LARGEST_NUMBER:
        yield f"{inside} is {value:g}, which is too large to compute with"
    elif isinstance(value, int | float) and inside != "points" and math.copysign(1.0, value) < 0:
        yield f"{inside} is {value:g}, and must not be negative"
