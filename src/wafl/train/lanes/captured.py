"""Record local steps on a GPU as CUDA graphs, once per shape, and replay them.

A step launches hundreds of small kernels. Launching them one by one takes the CPU longer than computing them takes the
GPU. A graph launches all of them at once.
"""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from wafl.base.errors import SequentialWarning, warn_user
from wafl.tasks.modes.one_by_one import side_by_side
from wafl.train.batches import room_for
from wafl.train.client_task import ClientTask, LaneInput, mapped, tensors_of
from wafl.train.step import Batch, Carry, Eager, step

T = TypeVar("T")


@dataclass
class _Recording:
    """The memory from which graphs read the lanes, their carry and their batch; one graph is for first steps."""

    lanes: LaneInput
    carry: Carry
    batch: Batch
    graphs: dict[bool, torch.cuda.CUDAGraph]
    sent: LaneInput | None = None  # the lanes whose values are in this memory

    def fill(self, lanes: LaneInput, carry: Carry, batch: Batch) -> None:
        if self.sent is not lanes:
            _copy(self.lanes, lanes)
            self.sent = lanes
        if self.carry is not carry:
            _copy(self.carry, carry)
        _copy(self.batch, batch)

    def goes_on(self, lanes: LaneInput, carry: Carry, batch: Batch) -> bool:
        """Return whether these are the previous step's lanes and carry, so that shapes need no comparison."""
        alike = (self.batch.live is None) == (batch.live is None) and self.batch.rows.shape == batch.rows.shape
        return alike and self.sent is lanes and self.carry is carry


class Captured(Eager):
    """A step that is recorded once per shape and replayed, if possible."""

    reuses = True

    def __init__(self) -> None:
        self._recordings: dict[Any, _Recording] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._last: _Recording | None = None
        self._obstacle: str | None = None

    def room(self, working: int) -> int:
        """Return the smallest of 1, 2, 3, 4, 6, 8, 12, ... that is at least ``working``, since recording is slow."""
        return room_for(working, smallest=1)

    def __call__(self, client: ClientTask, lanes: LaneInput, carry: Carry, batch: Batch) -> Carry:
        """Return the carry after one step, from a recording if possible."""
        if self._obstacle is not None:
            return step(client, lanes, carry, batch)
        recording = self._recording(lanes, carry, batch)
        recording.fill(lanes, carry, batch)
        if batch.first not in recording.graphs:
            try:
                recording.graphs[batch.first] = self._record(client, recording, batch.first)
            except (RuntimeError, ValueError) as error:
                self._obstacle = str(error).partition("\n")[0]
                message = f"local steps cannot be captured as a CUDA graph, and take longer: {self._obstacle}"
                warn_user(message, SequentialWarning)
                return step(client, lanes, carry, batch)
        recording.graphs[batch.first].replay()
        return recording.carry

    def _recording(self, lanes: LaneInput, carry: Carry, batch: Batch) -> _Recording:
        if self._last is not None and self._last.goes_on(lanes, carry, batch):
            return self._last
        shape = _shape(lanes, carry, batch), tuple(map(_is_shared, tensors_of(lanes)))
        if shape not in self._recordings:
            if len(self._recordings) == 32:  # each graph has a copy of its lanes' carry
                self._recordings.clear()
            lanes = mapped(lambda tensor: _cloned(_one(tensor)).expand_as(tensor), lanes)
            self._recordings[shape] = _Recording(lanes, _cloned(carry), _cloned(batch), {})
        self._last = self._recordings[shape]
        return self._last

    def _record(self, client: ClientTask, recording: _Recording, first: bool) -> torch.cuda.CUDAGraph:
        graph, batch = torch.cuda.CUDAGraph(), replace(recording.batch, first=first)
        with side_by_side():
            step(client, recording.lanes, recording.carry, batch)  # libraries initialize themselves in their first call
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, pool=self._pool):
                _copy(recording.carry, step(client, recording.lanes, recording.carry, batch, over=True))
        return graph


def _copy(targets: T, values: T) -> None:
    for target, value in zip(tensors_of(targets), tensors_of(values), strict=True):
        if target is not value:
            _one(target).copy_(_one(value))


def _one(tensor: torch.Tensor) -> torch.Tensor:
    """Return the first lane if all lanes have the same numbers, as at the start of a round of one run.

    Otherwise all lanes.
    """
    return tensor[:1] if _is_shared(tensor) else tensor


def _is_shared(tensor: torch.Tensor) -> bool:
    return tensor.ndim > 1 and len(tensor) > 1 and tensor.stride(0) == 0


def _cloned(value: T) -> T:
    return mapped(lambda tensor: tensor.clone(memory_format=torch.contiguous_format), value)


def _shape(*values: Any) -> tuple[Any, ...]:
    return tuple((tuple(tensor.shape), tensor.dtype) for value in values for tensor in tensors_of(value))
