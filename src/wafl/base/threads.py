"""Work on several threads, with the same bits as on one."""

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
    """A block in which torch computes on one thread: threads that share a product sum in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def map_in_threads(work: Callable[[Piece], Result], pieces: Sequence[Piece], most: int | None = None) -> list[Result]:
    """``[work(piece) for piece in pieces]``, each on one thread, in up to ``most`` of them: the same bits.

    By default, as many as torch may use. Many small steps run faster so than with threads inside.
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
