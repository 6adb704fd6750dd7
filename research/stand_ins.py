"""Natural data from files, where the packages that bring them are not installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wafl.data.named.cache import locate
from wafl.data.named.natural import NATURAL, Table
from wafl.data.named.sources import SOURCES

if TYPE_CHECKING:
    from research.promises.tasks import Task


def read_tables(folder: Path) -> None:
    """Read natural data from files ``NAME.npz`` with x, y and who, instead of from their packages."""
    for file in folder.glob("*.npz"):
        if file.stem in NATURAL:
            with np.load(file) as arrays:
                table = Table(arrays["x"], arrays["y"], [str(who) for who in arrays["who"]])
            source = replace(NATURAL[file.stem], module="numpy", file="", brought=False, read=lambda _, t=table: t)
            NATURAL[file.stem] = source


def write_tables(tasks: Iterable[Task], folder: Path) -> None:
    """Write the data of tasks to a folder that then serves as the data folder of another machine (``WAFL_DATA``).

    Measurements become files ``TASK.table.npz``, which ``research.promises.tasks`` reads; files of images are copied.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for task in tasks:
        if task.missing is not None:
            print(f"{task.name}: left out, as {task.missing} is not here")
        elif task.about.get("data") in SOURCES and (found := locate(task.about["data"])) is not None:
            for path in found.paths:
                shutil.copyfile(path, folder / path.name)
        else:
            write_table(task, folder)


def write_table(task: Task, folder: Path) -> None:
    """Write the measurements of a task, with the sources of its examples."""
    made = task.dataset()
    if made.group_train is None:
        raise ValueError(f"{task.name} has no natural clients")
    names = np.array(made.group_names)
    arrays = {"x": made.x_train.numpy(), "y": made.y_train.numpy(), "who": made.group_train.numpy(), "names": names}
    np.savez_compressed(folder / f"{task.name}.table.npz", **arrays)  # pyright: ignore[reportArgumentType]
