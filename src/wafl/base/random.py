"""Draw random numbers that are a pure function of their key.

Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), written in integer tensor
operations, so that a draw is the same on every device and in every engine. A key is ``(seed, purpose, round, client,
step)``. There is no global seed, so draws do not depend on the order of clients, on the lanes that they share, or on a
restart in the middle.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Words = NDArray[np.int64]
ROUNDS = 10
WORD = 0xFFFFFFFF
POSITION_BITS = 30
"""The number of bits of an int64 that are left for positions; a draw has up to 33 bits."""
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


class Purpose(IntEnum):
    """The purpose of a draw; draws for different purposes are independent.

    Adding a multiple of 256 gives a further purpose.
    """

    COHORT = 1
    BATCH = 2
    SNAPSHOT = 3
    LOSS_COHORT = 4
    START = 5
    SPLIT = 6
    LABELS = 7
    SIZES = 8
    ATTACKED = 9
    BOOTSTRAP = 10
    SHIFT = 11
    TRANSPORT = 12
    FAULT = 13
    UNSEEN = 14
    DROPOUT = 15
    HELD_OUT = 16
    TRIALS = 17
    LEFT_OUT = 18
    AUGMENTATION = 19
    ATTACK = 20


@dataclass(frozen=True)
class Key:
    """One key per lane: integer tensors of equal length (or of shape ``[]`` for a single draw)."""

    seed: Tensor
    round: Tensor
    client: Tensor
    step: Tensor

    @classmethod
    def of(cls, seed: int, round: int = 0, client: int = 0, step: int = 0) -> Self:
        """Return the key of a single draw."""
        return cls(*(torch.tensor(value, dtype=torch.int64) for value in (seed, round, client, step)))

    @classmethod
    def of_examples(cls, seed: int, numbers: Tensor, step: int = 0) -> Self:
        """Return one key per example; its draws depend only on its index and the seed, in any batch."""
        seeds, rounds, steps = (torch.full_like(numbers, value) for value in (seed, 0, step))
        return cls(seeds, rounds, numbers, steps)

    def at(self, step: int) -> Self:
        """Return the same keys at another step."""
        return replace(self, step=torch.full_like(self.step, step))


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Return four 32-bit words (in int64) for each 128-bit counter and 64-bit key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        low, high = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((high >> 32) & WORD) ^ c1 ^ k0,
            high & WORD,
            ((low >> 32) & WORD) ^ c3 ^ k1,
            low & WORD,
        )
        k0, k1 = (k0 + _WEYL[0]) & WORD, (k1 + _WEYL[1]) & WORD
    return [c0, c1, c2, c3]


def philox_array(counter: Sequence[Words], key: tuple[Words | int, int]) -> list[Words]:
    """Return the words of :func:`philox`, computed by numpy, whose unsigned numbers need half of the operations."""
    c0, c1, c2, c3 = (part.astype(np.uint64) for part in counter)
    k0, k1 = (part if isinstance(part, int) else part.astype(np.uint64) for part in key)
    for _ in range(ROUNDS):
        low, high = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (high >> 32) ^ c1 ^ k0, high & WORD, (low >> 32) ^ c3 ^ k1, low & WORD
        k0, k1 = (k0 + _WEYL[0]) & WORD, (k1 + _WEYL[1]) & WORD
    return [word.view(np.int64) for word in (c0, c1, c2, c3)]


def bits(key: Key, purpose: int, count: int) -> Tensor:
    """Return ``count`` integers in [0, 2**32) for each lane: shape ``[*lanes, count]``."""
    parts = (key.seed, key.round, key.client, key.step)
    if key.seed.device.type == "cpu":  # numpy takes less than half as long for so few numbers
        seed, round_, client, step = (part.numpy()[..., None] for part in parts)
        one = int(seed.flat[0]) if seed.size and bool((seed == seed.flat[0]).all()) else seed  # a number is quicker
        blocks = np.arange((count + 3) // 4)
        words = np.broadcast_arrays(*philox_array((blocks, step, round_, client), (one, int(purpose))))
        return torch.from_numpy(np.stack(words, axis=-1).reshape(*words[0].shape[:-1], -1)[..., :count])
    seed, round_, client, step = (part[..., None] for part in parts)
    blocks = torch.arange((count + 3) // 4, device=key.seed.device)
    words = philox((blocks, step, round_, client), (seed, torch.full_like(seed, purpose)))
    return torch.stack(torch.broadcast_tensors(*words), dim=-1).flatten(-2)[..., :count]


def uniform(key: Key, purpose: int, count: int) -> Tensor:
    """Return ``count`` uniform numbers in [0, 1) for each lane; they have 24 bits, exact in float32 and float64."""
    return (bits(key, purpose, count) >> 8).to(torch.float64) * 2.0**-24


def normal(key: Key, purpose: Purpose, count: int) -> Tensor:
    """Return ``count`` standard normal numbers for each lane, by the Box-Muller transform."""
    u = uniform(key, purpose, count + count % 2)
    length = torch.sqrt(-2.0 * torch.log1p(-u[..., 0::2]))
    angle = 2.0 * math.pi * u[..., 1::2]
    # Interleaved, so that a draw does not depend on how many are drawn after it.
    return torch.stack([length * torch.cos(angle), length * torch.sin(angle)], dim=-1).flatten(-2)[..., :count]


def permutation(key: Key, purpose: Purpose, sizes: Tensor, width: int) -> Tensor:
    """Return a random order of ``0 .. size-1`` in the first ``size`` of ``width`` columns, for each lane."""
    draws, positions = bits(key, purpose, width), torch.arange(width, device=key.seed.device)
    draws = draws.masked_fill(positions >= sizes[..., None], WORD + 1)
    if draws.device.type != "cpu":
        return draws.sort(dim=-1, stable=True).indices
    # The same order: each draw is followed by its place, and numbers are sorted much faster than places by numbers.
    ranked = np.sort((draws << POSITION_BITS | positions).numpy(), axis=-1)
    return torch.from_numpy(ranked & ((1 << POSITION_BITS) - 1))


def choose(seed: int, purpose: Purpose, total: int, count: int, round: int = 0) -> list[int]:
    """Return ``count`` random numbers below ``total``, sorted; a smaller choice is a subset of a larger one."""
    order = permutation(Key.of(seed, round), purpose, torch.tensor(total), total)
    return sorted(order[:count].tolist())
