"""List the source of each data set: its files, their published checksums, its license, and how to fetch a file.

The checksums are published by torchvision, or by pytorch-adapt for MNIST-M; Fashion-MNIST's and CIFAR-10's are also on
their own pages. None of these addresses was reachable where this file was written: a wrong address ends in an error,
and a wrong file never passes its checksum.
"""

import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wafl.base.extras import require
from wafl.base.shown import reached, shown
from wafl.base.toml import with_tuples


@dataclass(frozen=True)
class RemoteFile:
    """One file to download: the mirrors are tried in turn, and the MD5 identifies the right file."""

    name: str
    urls: tuple[str, ...]
    md5: str
    size: int | None = None


@dataclass(frozen=True)
class Source:
    """The facts about a data set before a download; users bring it if there are no ``files``.

    ``group`` is the kind of groups of examples. ``inside`` contains the published MD5 of files inside an archive that
    are also read from its folder, by name.
    """

    name: str
    description: str
    license: str
    homepage: str
    citation: str
    classes: tuple[str, ...]
    image_shape: tuple[int, ...]
    num_examples: tuple[int, int] | None = None
    files: tuple[RemoteFile, ...] = ()
    group: str | None = None
    inside: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.classes)


class DownloadError(OSError):
    """No mirror served the file; the message has one line per mirror."""


def _source(name: str, entry: dict[str, Any]) -> Source:
    files = tuple(RemoteFile(**with_tuples(file)) for file in entry.pop("files", ()))
    return Source(name, **with_tuples(entry), files=files)


SOURCES: dict[str, Source] = {
    name: _source(name, entry)
    for name, entry in tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8")).items()
}
DIGITS = SOURCES.pop("digits")
"""The facts about the digits, which come with scikit-learn and have no file."""

ROUNDS = 2
"""The number of attempts over all mirrors."""
PAUSE = 1.0
"""The seconds between two attempts, since a dropped connection often comes back."""


def check_download_packages() -> None:
    """Raise ValueError if a package for downloads is missing."""
    for module in ("pooch", "requests"):
        require(module, extra="data", what="a download")


def download(file: RemoteFile, folder: Path) -> Path:
    """Fetch one file into ``folder``; a truncated file or a wrong checksum is discarded."""
    pooch = require("pooch", extra="data", what="a download")
    requests = require("requests", extra="data", what="a download")
    failures: dict[str, str] = {}
    pooch.get_logger().setLevel("WARNING")  # a line says how far it is
    with shown(f"download {file.name}"):
        # Some servers label a .gz file as compressed text, and it would then arrive unpacked.
        options: dict[str, Any] = {"headers": {"Accept-Encoding": "identity"}, "timeout": (10, 60)}
        for attempt in range(ROUNDS):
            if attempt:
                time.sleep(PAUSE)
            for url in file.urls:
                fetch: Any = pooch.HTTPDownloader(progressbar=_Bar(), chunk_size=1 << 16, **options)
                try:
                    return Path(pooch.retrieve(url, f"md5:{file.md5}", file.name, folder, downloader=fetch))
                except (requests.RequestException, ValueError) as error:
                    failures[url] = _reason(error, file)
    raise DownloadError("\n".join(f"  {url}: {reason}" for url, reason in failures.items()))


def _reason(error: Exception, file: RemoteFile) -> str:
    """Return a few words instead of a library's chain of causes."""
    from requests import exceptions

    if not isinstance(error, exceptions.RequestException):
        return f"what arrived is not the file: its MD5 is not the published {file.md5}"
    if isinstance(error, exceptions.HTTPError) and error.response is not None:
        return f"HTTP status {error.response.status_code}"
    reasons: dict[type[Exception], str] = {
        exceptions.Timeout: "no answer in time",
        exceptions.ChunkedEncodingError: "the connection was lost",
        exceptions.ConnectionError: "no connection",
    }
    return next((reason for kind, reason in reasons.items() if isinstance(error, kind)), str(error))


class _Bar:
    """A progress bar with the interface that pooch expects, which shows the downloaded part of a file."""

    total = arrived = 0

    def update(self, amount: int) -> None:
        self.arrived += amount
        reached(round(self.arrived / 1e6, 1), round(self.total / 1e6, 1) or None, "MB")

    def reset(self) -> None:
        self.arrived = 0

    def close(self) -> None:
        """Do nothing, since the line stays until the download ends."""
