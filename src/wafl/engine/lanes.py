"""The embedded engine: all clients of all runs as lanes of one batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from wafl.algorithms import Query, Replies
from wafl.core.random import Key
from wafl.engine.local import ClientTask, LaneInput, LaneOutput, local_update, report_loss
from wafl.engine.memory import lanes_that_fit
from wafl.engine.progress import Place


class Lanes:
    """Answers one query of each of several runs at once.

    A lane is one client's copy of the parameters in one run. Lanes go in chunks of ``chunk_size``: by default
    as many as half of the free memory holds. The chunk size changes no draw.

    ``memory`` is what an adversary lets each client keep, by run and client; filled as clients first take part.
    ``rows`` says which client of ``client.examples`` each asked client is, where they are only some of all. With
    ``pair`` a lane that is alone has its copy beside it: a network's convolutions then round as among others.
    """

    def __init__(
        self,
        client: ClientTask,
        chunk_size: int | None = None,
        memory: dict[Place, Tensor] | None = None,
        rows: Mapping[int, int] | None = None,
        pair: bool = False,
    ) -> None:
        if chunk_size is not None and chunk_size < 1:
            raise ValueError(f"chunk_size={chunk_size} must be at least 1")
        self.client = client
        self.chunk_size = chunk_size
        self.memory = memory if memory is not None else {}
        self._rows, self._pair = rows, pair

    def run(self, queries: Sequence[Query], runs: Sequence[int] | None = None) -> list[Replies]:
        """The replies to each run's query; all queries are of one kind and round.

        ``runs`` numbers the runs, where some have ended: what a client keeps, it keeps for its run.
        """
        if not queries:
            return []
        places, numbers = _places(queries), list(runs) if runs is not None else list(range(len(queries)))
        work = local_update if queries[0].kind == "train" else report_loss
        keepers = [(numbers[run], client) for run, client in places]
        lanes = self._lanes(queries, places, keepers)
        if self.chunk_size is None:
            self.chunk_size = lanes_that_fit(self.client, lanes)
        alone = self._pair and len(places) == 1
        pieces = [lanes.take(torch.zeros(2, dtype=torch.int64))] if alone else lanes.split(self.chunk_size)
        output = _join([work(self.client, piece) for piece in pieces])
        if output.memory is not None:
            sound = torch.isfinite(output.memory).flatten(1).all(1).tolist()
            # Clones, because a view would keep the whole cohort's tensor alive.
            self.memory.update(
                (keeper, output.memory[lane].clone()) for lane, keeper in enumerate(keepers) if sound[lane]
            )
        return [_replies(query, run, places, output) for run, query in enumerate(queries)]

    def _lanes(self, queries: Sequence[Query], places: list[Place], keepers: list[Place]) -> LaneInput:
        device, dtype = queries[0].params.device, queries[0].params.dtype
        run = torch.tensor([run for run, _ in places])

        def per_lane(values: Sequence[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype)[run].to(device)

        clients = torch.tensor([client for _, client in places], device=device)
        rows = clients if self._rows is None else torch.tensor([self._rows[client] for _, client in places])
        steps = [query.snapshot_step for query in queries if query.snapshot_step is not None]
        return LaneInput(
            params=torch.stack([query.params for query in queries])[run.to(device)],
            clients=rows.to(device),
            scalars={name: per_lane([query.scalars[name] for query in queries], dtype) for name in queries[0].scalars},
            key=Key(
                per_lane([query.seed for query in queries], torch.int64),
                per_lane([query.round for query in queries], torch.int64),
                clients,
                torch.zeros_like(clients),
            ),
            memory=self._recall(keepers, queries[0].params),
            snapshot_step=per_lane(steps, torch.int64) if steps else None,
            sharing=_sharing(queries, places),
        )

    def _recall(self, keepers: list[Place], like: Tensor) -> Tensor | None:
        adversary = self.client.adversary
        fresh = adversary.initial_memory(self.client.examples.shape) if adversary is not None else None
        if fresh is None:
            return None
        fresh = fresh.to(like)
        return torch.stack([self.memory.get(keeper, fresh).to(like) for keeper in keepers])


def _places(queries: Sequence[Query]) -> list[Place]:
    """Run and client of each lane; lanes with the same client and seed, whose batches are the same, side by side."""
    places = [(run, client) for run, query in enumerate(queries) for client in query.clients]
    return sorted(places, key=lambda place: (queries[place[0]].seed, place[1], place[0]))


def _sharing(queries: Sequence[Query], places: list[Place]) -> int:
    """How many lanes share each batch, where that is the same number for all, and else 1."""
    counts = set(Counter((queries[run].seed, client) for run, client in places).values())
    return counts.pop() if len(counts) == 1 else 1


def _replies(query: Query, run: int, places: list[Place], output: LaneOutput) -> Replies:
    lane_of = {place: lane for lane, place in enumerate(places)}
    rows = [lane_of[run, client] for client in query.clients]
    params, snapshots = (None if part is None else part[rows] for part in (output.params, output.snapshots))
    return Replies(query.clients, output.loss[rows], output.cost[rows], params, snapshots)


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
