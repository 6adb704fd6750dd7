"""Compute the clients of all runs as lanes of one batch, in chunks that fit in memory."""

import copy
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from wafl.base.checks import finite_rows
from wafl.base.options import Count
from wafl.base.random import Key
from wafl.base.threads import map_in_threads, one_thread
from wafl.parts.messages import GRADIENT, Query, Replies
from wafl.results.progress import ClientState, LaneKey
from wafl.train.client import LaneOutput, local_update, report_loss
from wafl.train.client_task import REPORT_BATCH, ClientTask, LaneInput, mapped
from wafl.train.lanes.captured import Captured
from wafl.train.step import Eager

Work = Callable[[ClientTask, LaneInput], LaneOutput]

RECORDED = 128
"""The maximum number of lanes of a network in one recording."""
LARGE, TOGETHER = 2**22, 2**27
"""A network with more than ``LARGE`` parameters has at most ``TOGETHER`` of them in all lanes of one recording.

If not all lanes fit, pieces have at most half of ``TOGETHER``, which saves memory where clients need the most.
"""
IN_TURN = 2**26
"""The maximum number of parameters in the lanes of a network that runs lane by lane; more would save no time."""


@dataclass
class Lanes:
    """The clients of all runs as one batch, which answers one query from each of several runs at once.

    A lane is one client's copy of the parameters in one run. Lanes with the same room in their batches are computed
    together, in chunks of ``chunk_size``; the default fits in half of the free memory. Chunks change no random draw.

    ``memory`` is the clients' memory, by run and client; entries appear in a client's first round. ``rows`` maps each
    client to its index in ``client.examples``, if these are only some of all clients. With ``pair``, a single lane is
    computed next to a copy of itself, so that a network's convolutions round as in a larger batch. With ``captures``,
    steps are captured as CUDA graphs. Lanes of a model that runs one lane after another are divided among ``workers``
    threads with the same results; without them, torch uses its threads.
    """

    client: ClientTask
    chunk_size: int | None = None
    memory: dict[LaneKey, ClientState] = field(default_factory=dict[LaneKey, ClientState])
    rows: Mapping[int, int] | None = None
    pair: bool = False
    captures: bool = False
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.chunk_size is not None:
            Count().check("chunk_size", self.chunk_size)
        self._clients = [self.client]
        self._step = Captured() if self.captures else Eager()

    def run(self, queries: Sequence[Query], runs: Sequence[int] | None = None) -> list[Replies]:
        """Return the replies to each run's query, all of one kind and for the same vectors.

        Store the clients' memory.
        """
        if not queries:
            return []
        keys, numbers = self._lane_keys(queries), list(runs) if runs is not None else list(range(len(queries)))
        if queries[0].kind == "train":
            room, work = self.client.batch_room, partial(local_update, take_step=self._step)
        else:
            room, work = self.client.report_room, partial(report_loss, with_gradient=GRADIENT in queries[0].sends)
        keepers = [(numbers[run], client) for run, client in keys]
        lanes, params = self._lanes(queries, keys), queries[0].params
        fresh = {name: value.to(params) for name, value in self.client.initial_memory(params).items()}
        if self.chunk_size is None:
            wanted = len(queries[0].wanted) * params.nbytes + _bytes(fresh)
            self.chunk_size = lanes_that_fit(self.client, lanes, _bytes(fresh), len(keys) * wanted)
        shares = self.workers is not None and len(keys) > 1 and not self.client.task.traits.batched
        among_others = self.client.pairs and (self.pair or len(keys) > 1)
        gathered, begin = _Gathered(queries, keys), 0
        for rows in _alike([self._size(client) for _, client in keys], room):
            for piece in in_pieces(self.client, lanes.take(rows), self._step, self.chunk_size, self.workers or 1):
                here = keepers[begin : begin + len(piece.params)]
                begin += len(here)
                piece = replace(piece, memory=self._recall(here, fresh))
                alone = among_others and len(here) == 1
                piece = piece.take(torch.zeros(2, dtype=torch.int64)) if alone else piece
                done = self._in_threads(work, piece) if shares else work(self.client, piece)
                done = done.take(slice(1)) if alone else done
                del piece  # and with it the clients' old memory, before there are copies of the new memory
                self._remember(here, done.memory)
                loss, cost, vectors = done.loss, done.cost, dict(done.vectors)
                del done
                gathered.add(loss, cost, vectors)
        return gathered.replies()

    def _in_threads(self, work: Work, lanes: LaneInput) -> LaneOutput:
        """Divide lanes among threads, each with a copy of the model, since a call changes its module's parameters."""
        parts = self._parts(lanes)
        while len(self._clients) < len(parts):
            self._clients.append(replace(self.client, task=copy.deepcopy(self.client.task)))
        pairs = list(zip(self._clients, parts, strict=False))
        with one_thread():
            outputs = map_in_threads(lambda pair: work(*pair), pairs, self.workers)
        return mapped(lambda *values: torch.cat(values), *outputs)

    def _parts(self, lanes: LaneInput) -> list[LaneInput]:
        """Return one part per worker, with about equal steps; lanes that share their batches stay together."""
        sizes = [self.client.sizes[row] for row in lanes.clients[:: lanes.sharing].tolist()]
        least = -(-2 // lanes.sharing) if self.client.pairs else 1
        count = min(self.workers or 1, max(len(sizes) // least, 1))
        done, cuts = list(accumulate(self.client.work.num_steps(sizes))), [0]
        for part in range(1, count):
            fair = bisect_left(done, done[-1] * part / count) + 1
            cuts.append(min(max(fair, cuts[-1] + least), len(sizes) - (count - part) * least))
        return [lanes.take(slice(*(cut * lanes.sharing for cut in ends))) for ends in pairwise([*cuts, len(sizes)])]

    def _lane_keys(self, queries: Sequence[Query]) -> list[LaneKey]:
        """Return run and client of each lane, the largest clients first; lanes with equal batches are neighbors."""
        keys = [(run, client) for run, query in enumerate(queries) for client in query.clients]
        return sorted(keys, key=lambda lane: (-self._size(lane[1]), queries[lane[0]].seed, lane[1], lane[0]))

    def _row(self, client: int) -> int:
        return client if self.rows is None else self.rows[client]

    def _size(self, client: int) -> int:
        return self.client.sizes[self._row(client)]

    def _lanes(self, queries: Sequence[Query], keys: list[LaneKey]) -> LaneInput:
        """All lanes, without their clients' memory."""
        device, dtype = queries[0].params.device, queries[0].params.dtype
        run = torch.tensor([run for run, _ in keys])

        def stacked(vectors: Sequence[Tensor]) -> Tensor:
            if len(vectors) == 1:  # all lanes read the same values, which stay in the processor's cache
                return vectors[0].expand(len(keys), -1)
            return torch.stack(list(vectors)).index_select(0, run.to(device))

        def per_lane(values: Sequence[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype)[run].to(device)

        clients = torch.tensor([client for _, client in keys], device=device)
        rows = torch.tensor([self._row(client) for _, client in keys])
        first = queries[0]
        return LaneInput(
            params=stacked([query.params for query in queries]),
            clients=rows.to(device),
            scalars={name: per_lane([query.scalars[name] for query in queries], dtype) for name in first.scalars},
            key=Key(
                per_lane([query.seed for query in queries], torch.int64),
                per_lane([query.round for query in queries], torch.int64),
                clients,
                torch.zeros_like(clients),
            ),
            vectors={name: stacked([query.vectors[name] for query in queries]) for name in first.vectors},
            iterates={name: per_lane([q.iterates[name] for q in queries], torch.int64) for name in first.iterates},
            sharing=_sharing(queries, keys),
        )

    def _remember(self, keepers: list[LaneKey], memory: Mapping[str, Tensor]) -> None:
        """Store the clients' memory after their work; a client whose new memory is not finite keeps the old one."""
        if not memory:
            return
        finite = torch.stack([finite_rows(kept.flatten(1)) for kept in memory.values()]).all(0).tolist()
        # Clones, because a view would keep the tensor of all lanes alive.
        self.memory.update(
            (keeper, {name: kept[lane].clone() for name, kept in memory.items()})
            for lane, keeper in enumerate(keepers)
            if finite[lane]
        )

    def _recall(self, keepers: list[LaneKey], fresh: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the memory of each lane's client, or its initial memory ``fresh``."""
        return {
            name: torch.stack([self.memory.get(keeper, fresh)[name].to(like) for keeper in keepers])
            for name, like in fresh.items()
        }


class _Gathered:
    """The replies to several queries, assembled piece by piece, so that rows are never all in memory twice."""

    def __init__(self, queries: Sequence[Query], keys: Sequence[LaneKey]) -> None:
        self._queries = queries
        rows = [{client: row for row, client in enumerate(query.clients)} for query in queries]
        self._to = [(run, rows[run][client]) for run, client in keys]
        self._numbers: list[dict[str, Tensor]] = [{} for _ in queries]
        self._vectors: list[dict[str, Tensor]] = [{} for _ in queries]

    def add(self, loss: Tensor, cost: Tensor, vectors: dict[str, Tensor]) -> None:
        """Take in the output of the next lanes, and empty ``vectors``."""
        here, self._to = self._to[: len(loss)], self._to[len(loss) :]
        moves: list[tuple[int, Tensor, Tensor]] = []
        for run in range(len(self._queries)):
            pairs = sorted((row, lane) for lane, (of, row) in enumerate(here) if of == run)
            if pairs:
                rows, lanes = torch.tensor(pairs, device=loss.device).unbind(1)
                moves.append((run, rows, lanes))
        for run, rows, lanes in moves:
            for name, values in (("loss", loss), ("cost", cost)):
                self._move(self._numbers[run], name, run, rows, values[lanes])
        for name in list(vectors):
            values = vectors.pop(name)
            for run, rows, lanes in moves:
                if name in self._queries[run].wanted:
                    # Whole rows are copied several times faster by index_select than by indexing.
                    self._move(self._vectors[run], name, run, rows, values.index_select(0, lanes))

    def _move(self, result: dict[str, Tensor], name: str, run: int, rows: Tensor, values: Tensor) -> None:
        clients = len(self._queries[run].clients)
        if len(rows) == clients:
            result[name] = values
            return
        if name not in result:
            result[name] = values.new_empty(clients, *values.shape[1:])
        result[name].index_copy_(0, rows, values)

    def replies(self) -> list[Replies]:
        each = zip(self._queries, self._numbers, self._vectors, strict=True)
        return [Replies(query.clients, **numbers, vectors=vectors) for query, numbers, vectors in each]


def in_pieces(client: ClientTask, lanes: LaneInput, step: Eager, most: int, workers: int = 1) -> list[LaneInput]:
    """Split lanes into pieces of at most ``most``; lanes with the same batches stay together.

    A large network that is captured, or computed one lane after another, gets smaller pieces, because copies of its
    parameters and gradients take most of the memory. For a captured network, pieces are equal if the lanes can be split
    evenly.
    """
    count, size = lanes.params.shape
    if step.reuses and client.task.in_streams:
        room = RECORDED if size <= LARGE else max(TOGETHER // size, 1)
        if size > LARGE and count > room:
            room = max(room // 2, 1)
        least = -(-count // room)
        pieces = min(range(least, 2 * least), key=lambda pieces: -count % pieces)  # a smaller last piece is recorded
        most = min(most, -(-count // pieces))
    elif client.task.in_streams and not client.task.traits.batched:
        least = max(workers, 2) if client.pairs else workers
        most = min(most, max(IN_TURN // size // least, 1) * least)
    size = max(most // lanes.sharing, 1) * lanes.sharing
    return [lanes.take(slice(start, start + size)) for start in range(0, len(lanes.clients), size)]


def _alike(sizes: Sequence[int], room: Callable[[int], int]) -> list[slice]:
    """Return slices of lanes to compute together, with equal batch room and similar numbers of examples."""
    pieces, begin = list[slice](), 0
    for index, size in enumerate(sizes):
        if room(size) != room(sizes[begin]) or 8 * size < sizes[begin]:
            pieces.append(slice(begin, index))
            begin = index
    return [*pieces, slice(begin, len(sizes))]


def _sharing(queries: Sequence[Query], keys: list[LaneKey]) -> int:
    """Return the number of lanes per batch, if it is the same for all batches; otherwise 1."""
    counts = set(Counter((queries[run].seed, client) for run, client in keys).values())
    return counts.pop() if len(counts) == 1 else 1


def lanes_that_fit(client: ClientTask, lanes: LaneInput, memory: int = 0, all_lanes: int = 0) -> int:
    """Return the number of lanes, at least 1, that fit in half of the free memory."""
    free = free_bytes(lanes.params.device) - all_lanes
    return max(1, free // 2 // (_lane_bytes(client, lanes) + 4 * memory))


def _bytes(values: Mapping[str, Tensor]) -> int:
    return sum(value.nbytes for value in values.values())


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _lane_bytes(client: ClientTask, lanes: LaneInput) -> int:
    """Return the memory of a lane: parameters, gradient, batch, copies, activations for autograd, and all batches."""
    largest = int(client.examples.num_examples.max())
    batch = min(max(client.work.batch_size or largest, REPORT_BATCH), largest)
    params = lanes.params[:1]
    one = params.new_zeros(1, *client.examples.shape).nbytes
    few = [_activations(client, params, size) for size in (2, 3)]  # the bytes grow by the same amount per example
    kept = few[0] + (batch - 2) * (few[1] - few[0])
    vectors = sum(vector[0].nbytes for vector in lanes.vectors.values())
    # Drawing one example of one step takes 64 bytes: its index, and the values that are compared and sorted.
    drawn = 64 * max(client.work.num_steps([largest])) * client.batch_room(largest)
    again = client.local.gradients - 1  # each has its own place, gradient and moved examples
    models, batches = 6 + 2 * again, 8 + 2 * again
    return models * params.nbytes + 4 * vectors + batches * batch * one + 3 * kept + drawn


def _activations(client: ClientTask, params: Tensor, size: int) -> int:
    """Return the bytes that autograd keeps for a batch of this size."""
    kept = 0

    def count(tensor: Tensor) -> None:  # a result that its own graph refers to would never be released
        nonlocal kept
        kept += tensor.nbytes

    with torch.autograd.graph.saved_tensors_hooks(count, lambda nothing: nothing), torch.enable_grad():
        client.task.call(params[0].clone().requires_grad_(), params.new_zeros(size, *client.examples.shape))
    return kept
