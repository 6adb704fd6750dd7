"""Define the files of the receipts protocol: a request to sites, a site's receipt, and a merged file.

The owner of a model signs a **request** before any site answers. A **receipt** is a site's signed reply; it names the
request by its digest. A **merged** file contains the request, the replies and the statements that follow from them.
Each kind of file is signed with a different domain string, so that no signature of one kind is a signature of another.
Each byte of these files is checked.
"""

import math
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

from wafl.base.files import check_place, read_limited, write_whole
from wafl.base.json_types import as_type, parsed_table
from wafl.promises.promise import as_table, to_bytes
from wafl.promises.read import DIGEST, LARGEST_FILE, LARGEST_NUMBER, LONGEST_REASON, SIGNATURE, is_time
from wafl.promises.sign import is_signed_with, sign

NONCE = re.compile(r"[0-9a-f]{32}")
MOST_RADII, MOST_THRESHOLDS, LONGEST_NAME, MOST_EXAMPLES = 10, 64, 100, 2**40
UNSIGNED = "0" * 128
F = TypeVar("F", "Request", "Receipt", "Merged")
S = TypeVar("S", "Request", "Receipt")


@dataclass(frozen=True)
class Asked:
    """The questions of a request, in the form of :class:`wafl.receipts.Questions`."""

    metric: Literal["loss", "error"]
    radii: tuple[float, ...]
    norm: Literal["inf"] | float
    own_sampling: bool
    confidence: float | None
    coverage: float
    about: Literal["client", "example"]
    score: Literal["margin", "probability", "aps", "raps", "residual", "scaled_residual"]
    grid: tuple[float, ...]
    gammas: tuple[float, ...] | None
    minimum: int
    liars: int


@dataclass(frozen=True)
class Numbers:
    """A site's reply, in the form of :class:`wafl.receipts.reply.Reply`."""

    examples: int
    values: tuple[float, ...]
    uppers: tuple[float | None, ...]
    above: tuple[tuple[float, ...], ...]
    reason: str


class _File:
    """A dataclass that is saved as a file."""

    @property
    def content(self) -> bytes:
        """The bytes of the file."""
        return to_bytes(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file, and return its path."""
        check_place(Path(path))
        write_whole(Path(path), self.content)
        return Path(path)


class _Signed(_File):
    """A file with a signature."""

    @cached_property
    def message(self) -> bytes:
        """The signed bytes: the domain string and all of the file but the signature."""
        content = as_table(self)
        del content["signature"]
        return f"{content['kind']}, format {content['format']}\n".encode() + to_bytes(content)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the signed bytes."""
        return sha256(self.message).hexdigest()


@dataclass(frozen=True)
class Request(_Signed):
    """An owner's questions to sites about a model; keys are Ed25519, in 64 hexadecimal digits."""

    KIND: ClassVar[str] = "wafl request"
    kind: Literal["wafl request"]
    format: Literal[1]
    nonce: str
    model: str
    loss: str
    unit: str
    questions: Asked
    invited: dict[str, str]
    """Keys of the invited sites, by name."""
    trained: tuple[str, ...]
    """Keys of the clients that trained."""
    issued: str
    deadline: str
    owner: str
    signature: str


@dataclass(frozen=True)
class Receipt(_Signed):
    """A site's reply to the request with this digest; without a reply, the site has too few examples."""

    KIND: ClassVar[str] = "wafl receipt"
    kind: Literal["wafl receipt"]
    format: Literal[1]
    request: str
    key: str
    issued: str
    reply: Numbers | None
    signature: str


@dataclass(frozen=True)
class Stated:
    """A statement about the next client, in numbers; None if too few sites support it."""

    kind: Literal["next", "sets"]
    radius: float
    own_sampling: bool
    value: Literal["inf"] | float | None
    confidence: float | None


@dataclass(frozen=True)
class Merged(_File):
    """The statements that follow from the replies of all sites that a request invited."""

    KIND: ClassVar[str] = "wafl next client"
    kind: Literal["wafl next client"]
    format: Literal[1]
    request: Request
    statements: tuple[Stated, ...]
    replies: dict[str, Numbers]
    small: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def count(self) -> int:
        """The number K of sites in the population, without sites that have too few examples."""
        return len(self.replies) + len(self.missing)


def is_merged(path: Path) -> bool:
    """Return whether a file states that ``wafl merge`` wrote it."""
    try:
        return parsed_table(read_limited(path, LARGEST_FILE)).get("kind") == Merged.KIND
    except (OSError, ValueError):
        return False


def read(kind: type[F], path: Path) -> F:
    """Read an untrusted file; raise ValueError unless each byte of it equals the form that is written here."""
    what = kind.KIND.removeprefix("wafl ")
    if not path.exists():
        raise FileNotFoundError(f"{path} is not a file: pass a {what}")
    try:
        data = read_limited(path, LARGEST_FILE)
        content = parsed_table(data)
        if content.get("kind") != kind.KIND:
            raise ValueError(f"it does not say that it is a {what}")
        file = as_type(kind, content)
        if file.content != data:  # other fields, a different order, a repeated name, numbers of the wrong type
            raise ValueError("it was changed, or written by another program")
        for complaint in _complaints(file):
            raise ValueError(complaint)
    except ValueError as error:
        raise ValueError(f"{path} is not a {what}, or was changed: {error}") from error
    return file


def signed(file: S, key: str | os.PathLike[str]) -> S:
    """Return a request or a receipt with its signature; raise ValueError if the result could not be read again."""
    for complaint in _complaints(file):
        raise ValueError(complaint)
    return replace(file, signature=sign(file.message, key))


def is_signed(file: Request | Receipt) -> bool:
    """Return whether a file is signed with the key that it names."""
    return is_signed_with(file.message, file.signature, file.owner if isinstance(file, Request) else file.key)


def collect(
    files: Iterable[Path], request: Request, revoked: Collection[str] = ()
) -> tuple[dict[str, Receipt], dict[str, str]]:
    """Return the receipts that count, by site, and the reason why each other file does not count."""
    names = {key: name for name, key in request.invited.items()}
    first, receipts, rejected = dict[str, Path](), dict[str, Receipt](), dict[str, str]()
    for file in dict.fromkeys(files):
        try:
            receipt = read(Receipt, file)
        except (OSError, ValueError) as error:
            rejected[str(file)] = str(error).removeprefix(f"{file} ")
            continue
        if (why := fault(receipt, request, revoked)) is not None:
            rejected[str(file)] = why
        elif (other := first.setdefault(name := names[receipt.key], file)) != file:
            receipts.pop(name, None)
            rejected |= {str(each): f"{name} has signed more than one receipt" for each in (other, file)}
        else:
            receipts[name] = receipt
    return receipts, rejected


def fault(receipt: Receipt, request: Request, revoked: Collection[str] = ()) -> str | None:
    """Explain why a receipt does not count, or return None if it does."""
    if receipt.request != request.digest:
        return "it answers a different request"
    if receipt.key in revoked:
        return f"its key {receipt.key} is revoked"
    if receipt.key in request.trained:
        return f"its key {receipt.key} belongs to a client that took part in training"
    if receipt.key not in request.invited.values():
        return f"its key {receipt.key} was not invited"
    if not is_signed(receipt):
        return "its signature is not by the owner of its key, or the receipt was changed later"
    if as_time(receipt.issued) > as_time(request.deadline):
        return f"it is dated {receipt.issued}, after the deadline {request.deadline}"
    return next(_of_reply(receipt.reply, request.questions), None) if receipt.reply is not None else None


def as_time(text: str) -> datetime:
    """Parse a time."""
    return datetime.fromisoformat(text)


def now() -> datetime:
    """Return the time by this machine's clock, in UTC and whole seconds."""
    return datetime.now(UTC).replace(microsecond=0)


def _complaints(file: Request | Receipt | Merged) -> Iterator[str]:
    """Yield the faults of a file whose values have the right types."""
    if isinstance(file, Merged):
        yield from _complaints(file.request)
        for reply in file.replies.values():
            yield from _of_reply(reply, file.request.questions)
        return
    keys = [file.owner, *file.invited.values(), *file.trained] if isinstance(file, Request) else [file.key]
    digests = [file.model if isinstance(file, Request) else file.request, *keys]
    if not all(map(DIGEST.fullmatch, digests)) or not SIGNATURE.fullmatch(file.signature):
        yield "a digest, a key or the signature is not written in lowercase hexadecimal digits"
    if not is_time(file.issued):
        yield "it does not say when it was issued"
    if isinstance(file, Request):
        yield from _of_request(file)


def _of_request(request: Request) -> Iterator[str]:
    if not NONCE.fullmatch(request.nonce) or not is_time(request.deadline):
        yield "it has no nonce or no deadline"
    for text, most in (*((name, LONGEST_NAME) for name in request.invited), (request.unit, 1000), (request.loss, 1000)):
        if not (text.isprintable() and text == text.strip() and 0 < len(text) <= most):
            yield f"{text[:LONGEST_NAME]!a} must be text of 1 to {most} characters that can be printed"
    if "'" in request.unit:
        yield f"its unit {request.unit!a} must have no single quote: sentences have it in quotes"
    owners = dict[str, str]()
    for name, key in request.invited.items():
        if (other := owners.setdefault(key, name)) != name:
            yield f"{other} and {name} have the same key"
        if key in request.trained:
            yield f"{name} was invited with the key of a client that took part in training"
    if not request.invited:
        yield "it invites no site"
    yield from _of_questions(request.questions)


def _of_questions(asked: Asked) -> Iterator[str]:
    distances = (*asked.radii, *(asked.gammas or ()))
    if not all(abs(each) <= LARGEST_NUMBER for each in (*asked.grid, *distances)) or any(
        each < 0 for each in distances
    ):
        yield "its questions have a number that is not finite, or negative"
    if not 0 < len(asked.radii) <= MOST_RADII or not 0 < len(asked.grid) <= MOST_THRESHOLDS:
        yield f"its questions need 1 to {MOST_RADII} radii, and 1 to {MOST_THRESHOLDS} thresholds"
    if any(one >= other for values in (asked.radii, asked.grid) for one, other in pairwise(values)):
        yield "its radii and its grid must rise"
    if not 0.0 < asked.coverage < 1.0 or not (asked.confidence is None or 0.0 < asked.confidence < 1.0):
        yield "its coverage and its confidence must lie between 0 and 1"
    moved = sum(radius > 0 for radius in asked.radii)
    if asked.norm not in ("inf", 1.0, 2.0) or len(asked.gammas or ()) != (moved if asked.about == "example" else 0):
        yield "its norm or its gammas differ from its questions"
    if not 1 <= asked.minimum <= MOST_EXAMPLES or not 0 <= asked.liars <= MOST_EXAMPLES:
        yield "its minimum of examples or its number of liars is out of range"


def _of_reply(reply: Numbers, asked: Asked) -> Iterator[str]:
    known = [*reply.values, *(upper for upper in reply.uppers if upper is not None)]
    if not all(0.0 <= number <= LARGEST_NUMBER for number in known):
        yield "a reply has a number that is negative or not finite"
    if not asked.minimum <= reply.examples <= MOST_EXAMPLES:
        yield f"a reply is about {reply.examples:.6g} examples, and {asked.minimum} or more are asked for"
    if {len(reply.values), len(reply.uppers), len(reply.above)} != {len(asked.radii)}:
        yield "a reply does not have one number for each radius"
    wanted = [asked.own_sampling and radius == 0 for radius in asked.radii]
    if [upper is not None for upper in reply.uppers] != wanted:
        yield "a reply has an upper bound that is not asked for, or lacks one that is"
    if asked.metric == "error" and any(number > 1.0 + 1e-9 for number in known):
        yield "a reply has an error rate above 1"
    for radius, counts in zip(asked.radii, reply.above, strict=False):
        if len(counts) != len(asked.grid) or not all(0.0 <= count <= reply.examples for count in counts):
            yield "a reply does not count between 0 and all of its scores at each threshold"
        if radius == 0 and any(one < other or one != math.floor(one) for one, other in pairwise((*counts, 0.0))):
            yield "a reply counts more scores above a higher threshold, or parts of a score"
    if not (reply.reason.isprintable() and len(reply.reason) <= LONGEST_REASON):
        yield "a reply has a reason that cannot be printed"
