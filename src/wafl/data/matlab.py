"""Read MATLAB files in a process of their own: a damaged one can end the interpreter that reads it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from wafl.data.unpack import LIMIT, read_npz

SECONDS = 120
"""How long reading one file may take; SVHN's training images take two seconds."""

CHILD = """
import sys
path, memory, names = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
except (ImportError, OSError, ValueError):
    pass  # no such limit on this system
import numpy as np
from scipy.io import loadmat
try:
    content = loadmat(path, variable_names=names)
    arrays = {name: content[name] for name in names if name in content}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "iuf":
            raise ValueError(f"{name} is not an array of numbers")
except MemoryError:
    sys.exit("it asks for more memory than it may have")
except Exception as error:
    sys.exit(str(error) or type(error).__name__)
np.savez(sys.stdout.buffer, **arrays)
"""


def read_mat(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Those of the arrays of numbers that a MATLAB file has."""
    memory = 2 * LIMIT
    with tempfile.TemporaryDirectory(prefix="wafl-") as folder:
        result = Path(folder) / "arrays.npz"
        with result.open("wb") as file:
            try:
                done = subprocess.run(
                    [sys.executable, "-P", "-c", CHILD, str(path.absolute()), str(memory), *names],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.PIPE,
                    timeout=SECONDS,
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # each thread takes address space
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise ValueError(f"reading it took more than {SECONDS} seconds") from None
        if done.returncode < 0:
            raise ValueError(f"it is damaged, and ended the process that read it ({_name(-done.returncode)})")
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise ValueError(said[-1] if said else f"reading it ended with status {done.returncode}")
        return read_npz(result, names)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
