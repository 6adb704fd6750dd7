"""What a network makes of the same examples, computed once for all the gammas that a search asks about."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from wafl.tasks.inputs import Inputs, shared
from wafl.tasks.problem import Problem
from wafl.tasks.task import Task

_KEPT: WeakKeyDictionary[Task, tuple[Tensor, dict[bytes, Tensor]]] = WeakKeyDictionary()
"""The last parameters that were asked about, and what was found by the digest of the question."""

Found = Callable[[Problem, Tensor, Tensor], Tensor]


def remembered(problem: Problem, x: Tensor | Inputs, y: Tensor, about: str, find: Found) -> Tensor:
    """For each lane, ``find(its problem, x [B, ...], y [B])``, stacked; lanes and calls that ask the same share it."""
    batches = shared(x).base
    each = len(y) // len(batches)
    found: list[Tensor] = []
    for group, batch in enumerate(batches):
        words = hashlib.blake2b(about.encode())
        for part in (batch, y[group * each]):
            words.update(part.detach().cpu().contiguous().numpy().tobytes())
        for lane in range(group * each, (group + 1) * each):
            params = problem.params[lane]
            kept = _KEPT.get(problem.task)
            if kept is None or not torch.equal(kept[0], params):
                kept = _KEPT[problem.task] = params.clone(), {}
            if words.digest() not in kept[1]:
                alone = replace(problem, params=params[None])
                kept[1][words.digest()] = find(alone, batch, y[lane])
            found.append(kept[1][words.digest()])
    return torch.stack(found)
