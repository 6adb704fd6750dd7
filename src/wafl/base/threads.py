"""Work on several threads, with the same bits as on one thread."""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Result = TypeVar("Result")


@contextmanager
def one_thread() -> Generator[None, None, None]:
    """Limit torch to one thread during the block, since threads that share a product change the order of sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def map_in_threads(work: Callable[[Piece], Result], pieces: Sequence[Piece], most: int | None = None) -> list[Result]:
    """Return ``[work(piece) for piece in pieces]`` from up to ``most`` threads, with the same bits.

    Each piece runs on one thread. By default, ``most`` is torch's number of threads. Many small steps are faster this
    way than with threads inside each step.
    """
    threads = min(torch.get_num_threads() if most is None else most, len(pieces))
    if threads <= 1:
        return [work(piece) for piece in pieces]
    grad = torch.is_grad_enabled()

    def alone(piece: Piece) -> Result:
        torch.set_num_threads(1)
        with torch.set_grad_enabled(grad):
            return work(piece)

    with one_thread(), ThreadPoolExecutor(threads) as pool:
        tasks = [pool.submit(copy_context().run, alone, piece) for piece in pieces]
        return [task.result() for task in tasks]
