"""Pieces of tensor work, each on a thread of its own: many small steps run faster so than with threads inside."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def map_in_threads(work: Callable[[Piece], Result], pieces: Sequence[Piece]) -> list[Result]:
    """``[work(piece) for piece in pieces]``, and the same bits."""
    threads = min(torch.get_num_threads(), len(pieces))
    if threads <= 1:
        return [work(piece) for piece in pieces]
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=partial(torch.set_num_threads, 1)) as pool:
            return list(pool.map(work, pieces))
    finally:
        torch.set_num_threads(before)
