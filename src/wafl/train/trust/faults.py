"""Make clients fail on purpose, to test whether training survives."""

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Annotated

import torch

from wafl.base.options import Range, Seed, check_options, frozen
from wafl.base.random import Key, Purpose, bits, uniform
from wafl.parts.messages import Query, Reply
from wafl.train.trust.admission import Arrivals

RATE = Range(0, 1, ": it is a rate")


@frozen
class Faults:
    """The rates at which clients fail on purpose.

    Each fault is drawn from the seed, independently for each client, round and attempt.

    >>> Faults(dropout=0.2, nan=0.05).dropout
    0.2
    """

    dropout: Annotated[float, RATE, "The rate of clients that do not reply."] = 0.0
    late: Annotated[float, RATE, "The rate of clients whose reply comes too late to count."] = 0.0
    nan: Annotated[float, RATE, "The rate of replies full of NaN."] = 0.0
    infinity: Annotated[float, RATE, "The rate of replies full of infinity."] = 0.0
    wrong_shape: Annotated[float, RATE, "The rate of replies that are too short."] = 0.0
    seed: Annotated[int, Seed(), "Together with the run's seed, decides which clients fail."] = 0

    def __post_init__(self) -> None:
        check_options(self)
        if sum(self.rates().values()) > 1.0 + 1e-12:
            raise ValueError(f"the rates of the faults sum to {sum(self.rates().values()):g}: they must not exceed 1")

    def rates(self) -> dict[str, float]:
        """Return the rate of each fault, by name."""
        names = ("dropout", "late", "nan", "infinity", "wrong_shape")
        return {name: getattr(self, name) for name in names}

    def befall(self, query: Query, attempt: int) -> dict[int, str]:
        """Return the fault of each client that fails in this query."""
        clients = torch.tensor(query.clients)
        both = int(bits(Key.of(self.seed, client=query.seed), Purpose.FAULT, 1))  # the faults' seed and the run's
        which = 2 * attempt + (query.kind == "loss")
        key = Key(*(torch.full_like(clients, value) for value in (both, query.round, 0, which)))
        draws = uniform(replace(key, client=clients), Purpose.FAULT, 1)[:, 0].tolist()
        names, edges = list(self.rates()), list(accumulate(self.rates().values()))
        drawn = {client: bisect(edges, draw) for client, draw in zip(query.clients, draws, strict=True)}
        return {client: names[index] for client, index in drawn.items() if index < len(names)}


def without(query: Query, missing: Sequence[int]) -> Query:
    """Return the same query for the other clients only."""
    return query.only([index for index, client in enumerate(query.clients) if client not in missing])


def spoil(replies: Sequence[Reply], faults: Mapping[int, str]) -> Arrivals:
    """Return the replies that arrive, spoiled or not, and the reasons why others do not arrive in time."""
    missing = {client: "dropped out" for client, fault in faults.items() if fault == "dropout"}
    missing |= {client: "late" for client, fault in faults.items() if fault == "late"}
    arrived: list[Reply] = []
    for reply in replies:
        fault = faults.get(reply.client)
        if fault in ("nan", "infinity"):
            value = torch.nan if fault == "nan" else torch.inf
            vectors = {name: torch.full_like(vector, value) for name, vector in reply.vectors.items()}
            arrived.append(replace(reply, loss=torch.full_like(reply.loss, value), vectors=vectors))
        elif fault == "wrong_shape":
            vectors = {name: vector[:-1] for name, vector in reply.vectors.items()}
            arrived.append(replace(reply, loss=reply.loss[None], vectors=vectors))
        elif fault is None:
            arrived.append(reply)
    return arrived, missing
