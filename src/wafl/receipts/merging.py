"""Merge receipts of sites into statements about the next client."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from wafl.base.files import check_place, write_whole
from wafl.base.json_types import as_type
from wafl.promises.next_client import page
from wafl.promises.receipts import Merged, Request, Stated, collect
from wafl.promises.sign import public_keys
from wafl.receipts.conclusion import Conclusion
from wafl.receipts.reply import Reply
from wafl.receipts.replying import opened, questions_of
from wafl.receipts.requesting import Place


@dataclass(frozen=True)
class Result:
    """The result of :func:`merge`.

    Args:
        merged: the content of the file.
        conclusion: the statements about the next client.
        rejected: the reasons why other receipts do not count, by file.
    """

    merged: Merged
    conclusion: Conclusion
    rejected: Mapping[str, str]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file, and a readable page next to it, ``NAME.md``; return the page."""
        check_place(Path(path), page=True)
        file = self.merged.save(path)
        write_whole(file.with_suffix(".md"), f"{self}\n".encode())
        return file.with_suffix(".md")

    def __str__(self) -> str:
        return page(self.merged)


def merge(request: Request | Place, receipts: Iterable[Place] | Place, *, revoked: Place | None = None) -> Result:
    """Derive statements about the next client from the receipts of the invited sites.

    A receipt does not count if its key was not invited, took part in training, is revoked, or also signed a different
    receipt. Neither does it count if it answers a different request or is dated after the deadline. An invited site
    without a valid receipt counts as infinity.

    Args:
        request: the request, or its file.
        receipts: the files of the receipts, or a folder of them.
        revoked: revoked public keys, in a file or a folder.
    """
    asked = opened(request)
    keys = set[str]() if revoked is None else set(public_keys(revoked).values())
    counted, rejected = collect(receipt_files(receipts), asked, keys)
    questions = questions_of(asked)
    given = {name: counted[name].reply for name in asked.invited if name in counted}
    replies = {name: Reply.of(vars(reply), questions) for name, reply in given.items() if reply is not None}
    small = tuple(name for name, reply in given.items() if reply is None)
    missing = tuple(name for name in asked.invited if name not in given)
    conclusion = Conclusion(questions, asked.model, asked.unit, replies, small, missing)
    rows = [each.content for each in (*conclusion.next, *conclusion.sets)]
    stated = tuple(as_type(Stated, {name: row[name] for name in Stated.__dataclass_fields__}) for row in rows)
    numbers = {name: reply for name, reply in given.items() if reply is not None}
    return Result(Merged("wafl next client", 1, asked, stated, numbers, small, missing), conclusion, rejected)


def receipt_files(receipts: Iterable[Place] | Place) -> list[Path]:
    """Return the files of receipts; in a folder, all files that end with ``.json``."""
    places = [receipts] if isinstance(receipts, str | os.PathLike) else list(receipts)
    files = list[Path]()
    for place in map(Path, places):
        if not place.exists():
            raise FileNotFoundError(f"{place} does not exist: pass the files of receipts, or a folder with them")
        files += sorted(place.glob("*.json")) if place.is_dir() else [place]
    return files
