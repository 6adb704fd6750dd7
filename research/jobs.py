"""Jobs of an experiment: each runs once, and its result is saved as one JSON file in a working folder.

After an interruption, the same command continues where it stopped. Several machines can share the jobs: put the files
of all of them into one folder.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch

from wafl.base.files import write_whole

Say = Callable[[str], None]
Job = TypeVar("Job")
Name = TypeVar("Name")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Kept:
    """Results of finished jobs. A job with a result from the same registration is not run again.

    Args:
        folder: the working folder; None keeps results in memory only.
        stamp: the registration's name and digest, which every file holds.
        processes: the number of jobs at once; 0 runs nothing.
        say: prints a line.
    """

    folder: Path | None
    stamp: Mapping[str, str]
    processes: int = 1
    say: Say = print
    results: dict[str, Any] = field(default_factory=dict[str, Any], init=False)

    def run(self, work: Callable[[Job], Any], jobs: Mapping[str, Job]) -> dict[str, Any]:
        """Return the results of jobs by name; without processes, only of those that are finished.

        ``work`` must be importable by other processes, and its results must survive JSON.
        """
        left = [(name, job) for name, job in jobs.items() if not self.has(name)]
        if left and not self.processes:
            self.say(f"not finished: {', '.join(name for name, _ in left)}")
        elif left:
            for (name, _), result in each(partial(_of_pair, work), left, self.processes):
                self._keep(name, result)
        return {name: self.results[name] for name in jobs if self.has(name)}

    def has(self, name: str) -> bool:
        """Load the result of a job, and return whether there is one."""
        file = self._file(name)
        if name not in self.results and file is not None and file.is_file():
            content = json.loads(file.read_bytes())
            if content["registered"] == self.stamp:
                self.results[name] = content["result"]
        return name in self.results

    def _keep(self, name: str, result: Any) -> None:
        text = json.dumps({"registered": self.stamp, "result": result})
        file = self._file(name)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, text.encode())
        self.results[name] = json.loads(text)["result"]

    def _file(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{name.replace(', ', '-').replace(' ', '-')}.json"


def _of_pair(work: Callable[[Job], Any], pair: tuple[str, Job]) -> Any:
    return work(pair[1])


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of an experiment whose jobs are kept."""
    parser.add_argument("--work", type=Path, default=Path("runs") / name, help="the folder that keeps finished jobs")
    parser.add_argument("--processes", type=int, default=1, help="the number of jobs at once")
    parser.add_argument("--done", action="store_true", help="run nothing; list the jobs that are not finished")


def kept(given: argparse.Namespace, stamp: Mapping[str, str]) -> Kept:
    """Return the store for these options.

    With ``--smallest``, nothing is read from the working folder or left there.
    """
    processes = 0 if given.done else given.processes
    return Kept(None if given.smallest else given.work, stamp, processes)


def each(make: Callable[[Name], Result], names: Sequence[Name], jobs: int) -> Iterator[tuple[Name, Result]]:
    """Yield ``(name, make(name))`` as each is finished, ``jobs`` at once; a single job runs in this process.

    An error in one name does not stop the others: the first error is raised after the last result. The processes share
    torch's threads, and must be able to import ``make``.
    """
    if jobs == 1 or len(names) < 2:
        for name in names:
            yield name, make(name)
        return
    threads = max(1, torch.get_num_threads() // jobs)
    failed: BaseException | None = None
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
        pending = {pool.submit(make, name): name for name in names}
        for done in as_completed(pending):
            if (error := done.exception()) is None:
                yield pending[done], done.result()
            else:
                failed = failed or error
    if failed is not None:
        raise failed
