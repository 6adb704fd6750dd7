"""Measure how often the labels of some clients are in their prediction sets, and the size of the sets."""

import os
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Self

from wafl.base.options import frozen
from wafl.results.frames import to_frame
from wafl.sets.answers import Client


@frozen
class Coverage:
    """Coverage and size of prediction sets, client by client."""

    promised: Annotated[float, "The promised coverage."]
    names: Annotated[tuple[str, ...], "The clients."]
    examples: Annotated[tuple[int, ...], "Each client's number of examples."]
    covered: Annotated[tuple[float, ...], "The fraction of each client's labels that are in their sets."]
    sizes: Annotated[tuple[float, ...], "Each client's mean number of classes per set, or mean interval width."]
    full: Annotated[tuple[int, ...], "Each client's number of sets that exclude nothing."]
    of_classes: Annotated[bool, "Whether sets are of classes; otherwise they are intervals."] = True

    @classmethod
    def of(cls, clients: Mapping[str, Client], threshold: float, promised: float, *, of_classes: bool) -> Self:
        """Measure the clients' sets at a threshold."""
        sizes, full = list[float](), list[int]()
        for client in clients.values():
            sets = client.sets(threshold)
            widths = sets.sum(1) if of_classes else sets[:, 1] - sets[:, 0]
            sizes.append(float(widths.double().mean()))
            full.append(int((sets.all(1) if of_classes else widths.isinf()).sum()))
        counts = tuple(client.size for client in clients.values())
        covered = tuple(client.covered(threshold) / client.size for client in clients.values())
        return cls(promised, tuple(clients), counts, covered, tuple(sizes), tuple(full), of_classes)

    @property
    def mean(self) -> float:
        """The mean coverage over clients, which is the coverage of the next example of a random client."""
        return fmean(self.covered)

    @property
    def size(self) -> float:
        """The mean size over clients."""
        return fmean(self.sizes)

    @property
    def share(self) -> float:
        """The share of clients with at least the promised coverage."""
        return fmean(value >= self.promised for value in self.covered)

    @property
    def unit(self) -> str:
        """The unit of a size."""
        return "classes per set" if self.of_classes else "mean interval width"

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per client."""
        columns = zip(self.names, self.examples, self.covered, self.sizes, self.full, strict=True)
        return [dict(zip(("client", "examples", "coverage", "size", "full"), row, strict=True)) for row in columns]

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` (``wafl-learn[pandas]``) with one row per client."""
        return to_frame(self.rows)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Plot coverage against size, one point per client; save the figure if given a path."""
        from wafl.report.plotting import coverage_against_size

        return coverage_against_size(
            self.covered, self.sizes, self.promised, self.unit, None if path is None else Path(path)
        )

    def __str__(self) -> str:
        examples = sum(self.examples)
        return (
            f"{self.mean:.1%} of labels covered on average over {len(self.names)} clients; at least "
            f"{self.promised:g} at {self.share:.1%} of them; {self.size:.3g} {self.unit}; "
            f"{sum(self.full):,} of {examples:,} sets are full"
        )
