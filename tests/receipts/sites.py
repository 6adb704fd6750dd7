"""Sites with keys, and receipts with numbers of our choice, signed as sites sign theirs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from tests.promises.files import write_keys
from wafl.base.json_types import as_type
from wafl.promises.promise import to_bytes
from wafl.promises.receipts import UNSIGNED, Asked, Numbers, Receipt, Request, now, signed
from wafl.promises.sign import public_digits
from wafl.receipts.questions import Questions

GRID = (-1.0, 0.0, 0.5, 2.0)
Content = dict[str, Any]


class Sites:
    """An owner and some sites, with a folder of keys; ``site("c0")`` is a private key."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.names = folder, [f"c{index}" for index in range(count)]
        for name in ("invited", "private", "receipts"):
            (folder / name).mkdir()
        self.owner, self.public = write_keys(folder, "owner")
        for name in self.names:
            _, public = write_keys(folder / "private", name)
            public.rename(folder / "invited" / f"{name}.pub")

    def site(self, name: str) -> Path:
        return self.folder / "private" / f"{name}.pem"

    def key(self, name: str) -> str:
        return public_digits(self.site(name), private=True)

    def asked(self, questions: Questions, **changes: Any) -> Request:
        """Return a signed request with these fields, if it may be read again."""
        content = as_type(Asked, questions.content)
        invited = {name: self.key(name) for name in self.names}
        known = public_digits(self.owner, private=True)
        until = (now() + timedelta(days=1)).isoformat()
        plain = Request(
            "wafl request", 1, "0" * 32, "a" * 64, "cross_entropy", "input units", content, invited, (),
            now().isoformat(), until, known, UNSIGNED,
        )  # fmt: skip
        return signed(replace(plain, **changes), self.owner)

    def reply(self, request: Request, name: str, numbers: Numbers | None, **changes: Any) -> Path:
        """Write a signed receipt, and return its file."""
        plain = Receipt("wafl receipt", 1, request.digest, self.key(name), now().isoformat(), numbers, UNSIGNED)
        return signed(replace(plain, **changes), self.site(name)).save(self.folder / "receipts" / f"{name}.json")

    def reply_all(self, request: Request, replies: Mapping[str, Numbers | None]) -> Path:
        for name, numbers in replies.items():
            self.reply(request, name, numbers)
        return self.folder / "receipts"


def drawn(seed: int, names: list[str], questions: Questions) -> dict[str, Numbers]:
    """Return the numbers of clients with a few scores each, counted one by one; at a radius, with parts of a score."""
    random, numbers = np.random.default_rng(seed), dict[str, Numbers]()
    for name in names:
        size = int(random.integers(20, 60))
        values, uppers, above = list[float](), list[float | None](), list[tuple[float, ...]]()
        for radius in questions.radii:
            scores = random.normal(size=size).round(1) + radius
            counts = [float((scores > threshold).sum()) for threshold in questions.thresholds]
            above.append(tuple(count * (1.0 - radius / 8.0) for count in counts))
            values.append(float((scores > 0).mean()))
            wanted = questions.own_sampling and radius == 0
            uppers.append(min(values[-1] + 0.3, 1.0) if wanted else None)
        numbers[name] = Numbers(size, tuple(values), tuple(uppers), tuple(above), "")
    return numbers


def forge(file: Path, change: Callable[[Content], Any]) -> Path:
    """Change a file, and write it as it is written here."""
    content = json.loads(file.read_bytes())
    change(content)
    file.write_bytes(to_bytes(content))
    return file
