"""The embedded engine: all clients of all runs as lanes of one batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wafl.algorithms import Query, Replies
from wafl.engine.local import ClientTask, LaneInput, LaneOutput, local_update, report_loss
from wafl.engine.memory import lanes_that_fit
from wafl.random import Key


class Lanes:
    """Answers one query of each of several runs at once.

    A lane is one client's copy of the parameters in one run. Lanes go in chunks of ``chunk_size``: by default
    as many as half of the free memory holds. The chunk size changes no draw.
    """

    def __init__(self, client: ClientTask, chunk_size: int | None = None) -> None:
        if chunk_size is not None and chunk_size < 1:
            raise ValueError(f"chunk_size={chunk_size} must be at least 1")
        self.client = client
        self.chunk_size = chunk_size
        self.memory: dict[tuple[int, int], Tensor] = {}
        """What an adversary lets each client keep, by run and client; filled as clients first take part."""

    def run(self, queries: Sequence[Query]) -> list[Replies]:
        """The replies to each run's query; all queries are of one kind."""
        work = local_update if queries[0].kind == "train" else report_loss
        lanes = self._lanes(queries)
        if self.chunk_size is None:
            self.chunk_size = lanes_that_fit(self.client, lanes)
        output = _join([work(self.client, piece) for piece in lanes.split(self.chunk_size)])
        self._remember(queries, output)
        cuts = [len(query.clients) for query in queries]
        rows = zip(
            output.loss.split(cuts),
            output.cost.split(cuts),
            _split(output.params, cuts),
            _split(output.snapshots, cuts),
            strict=True,
        )
        return [Replies(query.clients, *row) for query, row in zip(queries, rows, strict=True)]

    def _lanes(self, queries: Sequence[Query]) -> LaneInput:
        device = queries[0].params.device
        run = torch.tensor([index for index, query in enumerate(queries) for _ in query.clients])

        def per_lane(values: Sequence[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype)[run].to(device)

        def whole(values: Sequence[int]) -> Tensor:
            return per_lane(values, torch.int64)

        clients = torch.tensor([client for query in queries for client in query.clients], device=device)
        dtype = queries[0].params.dtype
        scalars = {name: per_lane([query.scalars[name] for query in queries], dtype) for name in queries[0].scalars}
        steps = [query.snapshot_step for query in queries if query.snapshot_step is not None]
        return LaneInput(
            params=torch.stack([query.params for query in queries])[run.to(device)],
            clients=clients,
            scalars=scalars,
            key=Key(
                whole([query.seed for query in queries]),
                whole([query.round for query in queries]),
                clients,
                torch.zeros_like(clients),
            ),
            memory=self._recall(queries),
            snapshot_step=whole(steps) if steps else None,
        )

    def _recall(self, queries: Sequence[Query]) -> Tensor | None:
        adversary = self.client.adversary
        fresh = adversary.initial_memory(tuple(self.client.examples.x.shape[1:])) if adversary is not None else None
        if fresh is None:
            return None
        fresh = fresh.to(queries[0].params)
        return torch.stack([self.memory.get(place, fresh) for place in _places(queries)])

    def _remember(self, queries: Sequence[Query], output: LaneOutput) -> None:
        if output.memory is not None:
            # Clones, because a view would keep the whole cohort's tensor alive.
            self.memory.update((place, row.clone()) for place, row in zip(_places(queries), output.memory, strict=True))


def _places(queries: Sequence[Query]) -> list[tuple[int, int]]:
    return [(run, client) for run, query in enumerate(queries) for client in query.clients]


def _join(outputs: list[LaneOutput]) -> LaneOutput:
    if len(outputs) == 1:
        return outputs[0]
    return LaneOutput(
        torch.cat([output.loss for output in outputs]),
        torch.cat([output.cost for output in outputs]),
        _cat([output.params for output in outputs]),
        _cat([output.snapshots for output in outputs]),
        _cat([output.memory for output in outputs]),
    )


def _cat(values: list[Tensor | None]) -> Tensor | None:
    present = [value for value in values if value is not None]
    return torch.cat(present) if present else None


def _split(values: Tensor | None, cuts: list[int]) -> Sequence[Tensor | None]:
    return [None] * len(cuts) if values is None else values.split(cuts)
