"""Draw a few items from a random order of many, at the cost of the few.

A generalized Feistel cipher with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA
2002). The positions ``0 .. total-1`` lie in a grid of ``rows x columns``, just large enough. One turn moves each
position along its column by a random amount that depends only on the column, and the next turn along its row. Each turn
can be undone, so all turns together are a permutation of the grid. A position that leaves ``0 .. total-1`` moves on
until it is back.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from wafl.base.random import Purpose, philox_array

Integers = NDArray[np.int64]

TURNS = 16
"""The number of turns.

Two turns make each position uniform, and two more bring pairs closer to uniform by a factor of ``rows * columns``. Six
are enough for many clients. The other ten are for the smallest grids, where walking reduces this factor to two: with 16
turns, draws of up to 6 clients are within 0.0005 of uniform (total variation, over all keys).
"""

TABLE = 1024
"""The maximum number of rows for which one call draws the amounts of all turns; otherwise each turn draws its own."""


def first(seed: int, purpose: Purpose, total: int, count: int, round: int = 0) -> list[int]:
    """Return the first ``count`` items of a random order of ``0 .. total-1``, with work independent of ``total``."""
    rows = math.isqrt(total - 1) + 1
    columns = -(-total // rows)
    amounts = _amounts(seed, purpose, round, rows)
    positions = _permuted(np.arange(count), rows, columns, amounts)
    while (outside := positions >= total).any():
        positions[outside] = _permuted(positions[outside], rows, columns, amounts)
    return positions.tolist()


def _permuted(positions: Integers, rows: int, columns: int, amounts: Callable[[int, Integers], Integers]) -> Integers:
    row, column = np.divmod(positions, columns)
    for turn in range(0, TURNS, 2):
        row = (row + amounts(turn, column)) % rows
        column = (column + amounts(turn + 1, row)) % columns
    return row * columns + column


def _amounts(seed: int, purpose: Purpose, round: int, largest: int) -> Callable[[int, Integers], Integers]:
    """Return a function that draws random words, one for each turn and each row or column."""
    key, (at, client) = (seed, int(purpose)), (np.array([round]), np.array([0]))

    def draw(turn: Integers, coordinate: Integers) -> Integers:
        return philox_array((coordinate, turn, at, client), key)[0]

    if largest > TABLE:
        return lambda turn, coordinate: draw(np.array([turn]), coordinate)
    table = draw(np.arange(TURNS)[:, None], np.arange(largest))
    return lambda turn, coordinate: table[turn, coordinate]
