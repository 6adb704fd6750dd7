"""Read a folder with one file per client."""

from pathlib import Path
from typing import Any, cast

import numpy as np

from wafl.base.errors import ConfigError
from wafl.data.bring.arrays import Client
from wafl.data.federation import Federation
from wafl.data.labels import count_classes
from wafl.data.unpack import read_npz


def read_folder(folder: Path, limit: int | None = None, preprocess: str | None = None) -> Federation:
    """Read one client per file ``NAME.npz`` of at most ``limit`` bytes, with x and y, perhaps tests.

    Bytes are prepared.
    """
    if not folder.is_dir():
        raise ConfigError(f"data={str(folder)!r} is not a folder: give one with a file NAME.npz for each client")
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise ConfigError(f"data={str(folder)!r} holds no .npz file: give each client one, with x and y")
    clients = [_read_file(file, limit) for file in files]
    names = [file.stem for file in files]
    tested = [name for name, client in zip(names, clients, strict=True) if len(client) == 4]
    if tested and len(tested) != len(names):
        raise ConfigError(
            f"{folder}: {', '.join(tested)} have x_test and y_test, the others do not: give them to all or none"
        )
    # Classes that no client of this folder has may be at others.
    labels = [client[key] for client in clients for key in ("y", "y_test") if key in client]
    images = all(client[key].dtype == np.uint8 for client in clients for key in ("x", "x_test") if key in client)
    return Federation.from_arrays(
        [cast("Client", tuple(client.values())) for client in clients],
        test_fraction=None if tested else 0.0,
        names=names,
        num_classes=count_classes(labels),
        preprocess=preprocess if images else None,
    )


def _read_file(file: Path, limit: int | None) -> dict[str, np.ndarray[Any, Any]]:
    wanted = ("x", "y", "x_test", "y_test")
    try:
        arrays = read_npz(file, wanted, limit)
    except Exception as error:  # a damaged archive may raise anything
        raise ConfigError(f"{file} cannot be read: {error}") from error
    if set(arrays) not in ({"x", "y"}, set(wanted)):
        has = ", ".join(arrays) or "none"
        raise ConfigError(f"{file} holds {has} of x, y, x_test, y_test: give the first two or all")
    if arrays["y"].dtype.kind in "OSUT":
        raise ConfigError(f"{file} has text as labels, which sites would number differently: save the classes' numbers")
    return arrays
