"""The input and the report of contestants, which ``import handed`` in environments with numpy alone."""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Params = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Work:
    """The work: clients, the cohort of each round, the rows of each local step, and the parameters to start from.

    Client i has the rows ``offsets[i]:offsets[i + 1]``. The ``rows`` of a batch are counted from its client's first.
    Without a ``gamma`` it is FedAvg; otherwise each batch is first moved by ``steps`` steps of the inner ascent.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    offsets: NDArray[Any]
    cohorts: NDArray[Any]
    rows: NDArray[Any]
    ends: NDArray[Any]
    about: dict[str, Any]
    params: Params

    @classmethod
    def read(cls, path: str) -> "Work":
        """Read the work that :meth:`write` wrote to a file."""
        with np.load(path) as file:
            content = {name: file[name] for name in file.files}
        params = {name[6:]: value for name, value in content.items() if name.startswith("start.")}
        arrays = {name: content[name] for name in ("x", "y", "offsets", "cohorts", "rows", "ends")}
        return cls(**arrays, about=json.loads(str(content["about"])), params=params)

    def write(self, path: str) -> None:
        """Write the work to one ``.npz`` file."""
        arrays = {name: getattr(self, name) for name in ("x", "y", "offsets", "cohorts", "rows", "ends")}
        start = {f"start.{name}": value for name, value in self.params.items()}
        content: dict[str, Any] = {"about": json.dumps(self.about), **arrays, **start}
        np.savez(path, **content)

    @property
    def rounds(self) -> int:
        return len(self.cohorts)

    def client(self, number: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the examples and labels of a client."""
        rows = slice(int(self.offsets[number]), int(self.offsets[number + 1]))
        return self.x[rows], self.y[rows]

    def batches(self, round_: int, index: int) -> list[NDArray[Any]]:
        """Return the rows of each local step of the client at this position of the round's cohort."""
        begins = np.append(0, self.ends.reshape(-1)[:-1]).reshape(self.ends.shape)[round_, index]
        return [self.rows[begin:end] for begin, end in zip(begins, self.ends[round_, index], strict=True)]


Train = Callable[[int], Params]
"""A function that trains that many rounds from the work's start, and returns the parameters by name."""


def compete(prepare: Callable[[Work], Train]) -> None:
    """Train one round to start up, then all rounds, timed; write the parameters and print the cost as JSON."""
    work = Work.read(sys.argv[1])
    train = prepare(work)
    train(1)
    started = time.time()
    wall, cpu = time.perf_counter(), time.process_time()
    params = train(work.rounds)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    content: dict[str, Any] = params
    np.savez(sys.argv[2], **content)
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    # Only of what the contestant has imported: torch's reserved memory and JAX's peak are what others cannot have.
    torch, jax, gpu = sys.modules.get("torch"), sys.modules.get("jax"), None
    if work.about["device"] != "cpu" and torch is not None:
        gpu = int(torch.cuda.max_memory_reserved())
    elif work.about["device"] != "cpu" and jax is not None:
        gpu = int(jax.local_devices()[0].memory_stats()["peak_bytes_in_use"])
    startup = started - float(os.environ["WAFL_BENCH_BEGAN"])
    print(json.dumps({"startup": startup, "wall": wall, "cpu": cpu, "peak_bytes": 1024 * peak, "gpu_bytes": gpu}))
