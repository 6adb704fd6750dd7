"""Independent pieces of an experiment, one after another or several at once, each in a process of its own."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

import torch

Result = TypeVar("Result")


def each(make: Callable[[str], Result], names: Sequence[str], jobs: int) -> Iterator[tuple[str, Result]]:
    """``(name, make(name))`` of all names, as they are finished, ``jobs`` at once; one at a time stays in this process.

    What can be made is made: the first error comes after the last result. The processes share torch's threads, and must
    be able to import ``make``.
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
