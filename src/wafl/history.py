"""What happened, round by round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Record:
    """One round of one run.

    ``loss`` is the cohort's mean of what clients minimise, and ``achieved_radius`` the root mean transport
    cost, both on the clients' first batches at the round's starting parameters, clients weighted by lambda.
    """

    round: int
    loss: float
    seconds: float
    cohort: tuple[int, ...]
    achieved_radius: float | None = None
    gamma: float | None = None
    client_weights: tuple[float, ...] | None = None


class History(Sequence[Record]):
    """All rounds of a run; ``history.column("loss")`` is one quantity over the rounds."""

    def __init__(self, records: Sequence[Record] = ()) -> None:
        self._records = list(records)

    def append(self, record: Record) -> None:
        self._records.append(record)

    def column(self, name: str) -> list[Any]:
        return [getattr(record, name) for record in self._records]

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(record) for record in self._records]

    @classmethod
    def from_json(cls, rows: Sequence[dict[str, Any]]) -> History:
        def restore(value: Any) -> Any:
            return tuple(value) if isinstance(value, list) else value

        return cls([Record(**{name: restore(value) for name, value in row.items()}) for row in rows])

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: Any) -> Any:
        return self._records[index]

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __repr__(self) -> str:
        last = f", last loss {self._records[-1].loss:.4g}" if self._records else ""
        return f"History({len(self)} rounds{last})"
