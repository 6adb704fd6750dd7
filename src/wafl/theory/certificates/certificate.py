"""The certificate of a model: one row per radius, as a table, plain values, a figure or a page."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from wafl.base.conditions import unproven_line
from wafl.base.describe import rounded_up
from wafl.base.errors import PreconditionError
from wafl.base.norms import norm_name
from wafl.data.preprocessing import factors_of
from wafl.promises.known import Metric
from wafl.promises.promise import Promise, check_output
from wafl.promises.sentences import why_published_differs
from wafl.tasks.task import Task
from wafl.theory.certificates.mixture import Asked, AskMeans
from wafl.theory.certificates.sampling import Domain
from wafl.theory.certificates.upper import Inquiry
from wafl.theory.constants.constant import Constant
from wafl.theory.networks.rounding import Dtype

if TYPE_CHECKING:
    from wafl.report.plotting import Curve
    from wafl.theory.certificates.publish import Source

UNKNOWN = Constant(math.inf, "bound", "not known without the clients' examples")
Reach = Callable[[float], float | None]
"""A function that attacks the mixture within a radius and returns the loss, or None if there is no attack."""


class Quantity(ABC):
    """A quantity that a certificate bounds, such as the expected loss.

    To certify another quantity, derive from this class, and add the name to ``Metric`` and the class to
    ``QUANTITIES`` in ``certify.py``. No other code depends on the quantity. A quantity is the mean of a
    value per example, and phi_gamma is the largest value less gamma times the cost of the move: every bound is
    ``gamma radius^power + E[phi_gamma]``.
    """

    metric: ClassVar[Metric]
    """The name that users pass."""
    noun: ClassVar[str]
    """The name in a sentence."""
    simple: ClassVar[str]
    """The formula of the cruder bound."""
    largest: ClassVar[float]
    """The largest possible value of an example; infinite if there is none."""
    has_slopes: ClassVar[bool]
    """Whether values change gradually as examples move.

    Bounds then rest on the L_z and L_zz of the loss, and attacks along its gradient test them.
    """

    def missing(self, task: Task, num_classes: int | None) -> str | None:
        """Return the properties that the model or its data lack for this quantity; None if nothing is missing."""
        return None

    @abstractmethod
    def by_margins(self, task: Task) -> bool:
        """Return whether a bound follows from the slopes of a network's margins."""

    @abstractmethod
    def rows(
        self, means: AskMeans, radii: Sequence[float], question: Question, achieved: Reach
    ) -> tuple[float, float, list[Certificate]]:
        """Compute the quantity at rest, a bound on it that includes rounding, and a certificate per radius.

        ``achieved`` attacks the mixture within a radius, for searches that do not return an achieved loss themselves.
        """

    @abstractmethod
    def inquiry(self, certificates: Certificates, row: Certificate) -> Inquiry:
        """Return the inquiry that proves a row on examples other than those used to find it."""

    @abstractmethod
    def most(self, asked: Asked, domain: Domain, certificates: Certificates, gamma: float) -> float:
        """Return the largest value of phi_gamma in the domain; raise PreconditionError if it is not known."""


@dataclass(frozen=True)
class Question:
    """The options of a certificate (see :func:`wafl.certify`); ``steep`` and ``bent`` are L_z and L_zz.

    ``finite_above`` applies to linear models with a known phi_gamma: the gamma above which phi_gamma is finite.
    ``by_margins`` means that the model is a network with known slopes of its margins
    (:mod:`wafl.theory.networks.margins`). With a finite ``label_cost``, the clients let their labels change
    (:mod:`wafl.theory.certificates.mixture`).
    """

    quantity: Quantity
    norm: float = 2
    power: int = 2
    gap: float = 0.02
    finite_above: float | None = None
    by_margins: bool = False
    label_cost: float = math.inf
    unit: str = ""
    steep: Constant = UNKNOWN
    bent: Constant = UNKNOWN
    reason: str = ""
    """Why no bound on L_z is known; empty if one is."""
    dtype: Dtype = "float64"

    @property
    def labels_move(self) -> bool:
        """Whether labels may change at a finite price."""
        return math.isfinite(self.label_cost)


@dataclass(frozen=True)
class Certificate:
    """A bound at one radius: every distribution in the ball has expected loss at most ``value``, found at ``gamma``.

    ``simple`` is the cruder bound ``E[loss] + L_z radius``, or 1 for an error rate. Where labels change, it uses
    the loss at the worst labels, each less ``gamma label_cost`` at ``gamma = L_z / (2 radius)``. ``achieved`` is the
    loss of a distribution inside the ball, so the truth lies between ``achieved`` and the smaller of the two bounds.
    With ``power=1``, the worst loss is approached as ever less mass moves ever farther.
    """

    radius: float
    value: float
    gamma: float
    simple: float
    achieved: float | None
    tolerance: float | None = None
    """How far each example's phi_gamma may lie below its proven bound; None if no search found the bound."""
    margin: float = 0.0
    """The part of the value that allows for sampling, if the certificate is about distributions and not examples."""
    certified: float | None = None
    """The smallest proven bound; None if nothing is proven, and ``value`` and ``simple`` are only estimates."""

    @property
    def best(self) -> float:
        """The smaller of the two bounds."""
        return min(self.value, self.simple)

    @property
    def gap(self) -> float | None:
        """How far the truth may lie below the better certificate; negative if an estimate was too small."""
        return None if self.achieved is None else self.best - self.achieved


@dataclass(frozen=True)
class Certificates:
    """One certificate per radius.

    ``proven`` says whether each ``value`` is proven or rests on an estimate. It rests on L_zz or on a search along the
    margins; with ``power=1``, on L_z. With a ``confidence``, all certificates together hold for the distributions that
    the examples come from, with that probability over the draw of the examples. ``loss`` is the mean loss at radius 0;
    with ``metric="error"``, the loss and every value are error rates. ``label_cost`` is the price at which labels
    change in the ball.
    """

    rows: tuple[Certificate, ...]
    loss: float
    norm: float
    unit: str
    L_z: Constant
    L_zz: Constant
    quantity: Quantity
    confidence: float | None = None
    power: int = 2
    label_cost: float = math.inf
    reason: str = ""
    """Why nothing is proven; empty if some bound is proven."""
    source: Source | None = field(default=None, compare=False, repr=False)
    """The model and the clients, needed to save the certificate; None if the examples are on other machines."""
    dtype: Dtype = "float64"
    """The arithmetic of the evaluations that the bounds hold for, in addition to the exact loss."""

    def __post_init__(self) -> None:
        rows = (replace(row, certified=self.best_proven(row) if self.certifies else None) for row in self.rows)
        object.__setattr__(self, "rows", tuple(rows))

    @property
    def metric(self) -> Metric:
        """The name of the certified quantity."""
        return self.quantity.metric

    @property
    def proven(self) -> bool:
        """Whether every ``value`` is proven."""
        if self.L_z.kind == "attested":
            return False
        if not self.quantity.has_slopes:
            return True
        if self.power == 1:
            return self.L_z.kind != "estimate"
        return self.L_zz.proven or all(row.radius == 0 or row.tolerance is not None for row in self.rows)

    @property
    def simple_proven(self) -> bool:
        """Whether every ``simple`` bound is proven."""
        return self.L_z.proven if self.quantity.has_slopes else self.proven

    @property
    def certifies(self) -> bool:
        """Whether at least one of the two bounds is proven."""
        return self.proven or self.simple_proven

    @property
    def column(self) -> str:
        """The name of the column of bounds: "certified" if they are proven, otherwise "estimate"."""
        return "certified" if self.certifies else "estimate"

    @property
    def caveat(self) -> str | None:
        """The line to print above estimates; None if the bounds are proven."""
        return None if self.certifies else unproven_line(self.reason)

    def __getitem__(self, index: int) -> Certificate:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def published(self) -> Promise:
        """The promise that a file would contain: the values that :func:`wafl.verify` proves by itself."""
        return self._publish(None)

    def publish(self, *, points: int | None = None) -> Promise:
        """Return the promise for a file, with ``points`` per label for :func:`wafl.audit`; see :meth:`save`."""
        if points is None:
            return self.published
        promise = self._publish(points)
        vars(self).setdefault("published", replace(promise, parts=replace(promise.parts, labels=None)))
        return promise

    def save(
        self, path: str | os.PathLike[str], *, key: str | os.PathLike[str] | None = None, points: int | None = None
    ) -> Path:
        """Write a file that anyone can check with :func:`wafl.verify`, and a readable page next to it, ``NAME.md``.

        The file contains the bounds that the checker can prove alone. Its proofs are simpler than the search of
        :func:`wafl.certify`, so its values may be somewhat larger: print the certificate to see both. Without a proof,
        the file contains the estimates, attested by you, and the reason.

        Args:
            path: the file, such as ``certificate.json``.
            key: the file of an Ed25519 private key, without a password, that signs the certificate.
            points: the number of points per label to publish, so that others can measure their distance
                (:func:`wafl.audit`); this reveals means of groups of examples.

        Returns:
            The page.
        """
        check_output(path, key)
        return self.publish(points=points).save(path, key=key)

    def _publish(self, points: int | None) -> Promise:
        from wafl.theory.certificates.publish import publish

        if self.source is None:
            raise PreconditionError(
                "this certificate cannot be saved as a file: its clients' examples are not on this machine"
            )
        values = {row.radius: self.best_proven(row) for row in self.rows}
        return publish(self.source, values, self.confidence, self.reason, points)

    def to_json(self) -> dict[str, Any]:
        """Convert to plain values, with None for infinity."""
        rows = [{name: _finite(value) for name, value in vars(row).items()} for row in self.rows]
        constants = {
            name: {"value": _finite(float(value)), "kind": value.kind, "why": value.why}
            for name, value in (("L_z", self.L_z), ("L_zz", self.L_zz))
        }
        norm = norm_name(self.norm)
        about = {"metric": self.metric, "power": self.power, "loss": self.loss, "norm": norm, "unit": self.unit}
        if math.isfinite(self.label_cost):
            about["label_cost"] = self.label_cost
        if self.dtype != "float64":
            about["dtype"] = self.dtype
        about["column"] = self.column
        if self.caveat is not None:
            about["caveat"] = self.caveat
        return {**about, "confidence": self.confidence, "constants": constants, "certificates": rows}

    def plot(self, path: str | os.PathLike[str] | None = None, **others: Certificates) -> Any:
        """Plot certified and achieved losses against the radius, for this run and ``others``, by name."""
        return plot_certificates({"this run": self, **others}, None if path is None else Path(path))

    def report(self, path: str | os.PathLike[str] = "report.html", **others: Certificates) -> Path:
        """Write a page with a slider through the radii, for this run and ``others``, by name.

        Needs ``wafl-learn[report]``.

        Args:
            path: the file to write.
            others: certificates of other runs.

        Returns:
            The file.
        """
        from wafl.report.page import Page, Section, Study, Walks, check_page_packages, write_page

        check_page_packages()
        walks = [certificates.walk(name) for name, certificates in {"this run": self, **others}.items()]
        caption = f"The {norm_name(self.norm)} ball; radii in {self.unit}."
        caveats = {name: certificates.caveat for name, certificates in {"this run": self, **others}.items()}
        lead = " ".join(f"{name}: {caveat}" for name, caveat in caveats.items() if caveat is not None)
        if not all(caveats.values()):
            certified = "The achieved loss of a distribution in the ball is below the certified loss of the whole ball."
            lead = f"{lead} {certified}".strip()
        section = Section("Radius", lead, [Walks(walks, caption)])
        return write_page(Page("WAFL report", [Study("certificates", [section])]), Path(path))

    def walk(self, name: str) -> Any:
        """Return the content of a page's slider."""
        from wafl.report import charts
        from wafl.report.page import Reading, Stop, Walk

        curve = self.curve()
        best = f"loss {self.column}"
        lines = [charts.Curve(best, curve.radii, curve.certified, of=name)]
        if curve.reached is not None:
            lines.append(charts.Curve("loss reached", curve.radii, curve.reached, dash=True, of=name))
        stops: list[Stop] = []
        for row in sorted(self.rows, key=lambda row: row.radius):
            reached = {} if row.achieved is None else {"loss reached": Reading(row.achieved)}
            numbers = {**reached, best: Reading(self.best_proven(row), bound=curve.proven)}
            stops.append(Stop(f"radius {row.radius:g}", row.radius, numbers))
        return Walk(name, stops, charts.lines(lines, "radius", "expected loss"))

    def curve(self) -> Curve:
        """Return the best certificate for each radius, in ascending order, for a figure."""
        from wafl.report.plotting import Curve

        rows = sorted(self.rows, key=lambda row: row.radius)
        reached = [row.achieved for row in rows if row.achieved is not None]
        return Curve(
            [row.radius for row in rows],
            [self.best_proven(row) for row in rows],
            reached if len(reached) == len(rows) else None,
            self.certifies,
            self.loss,
        )

    def best_proven(self, row: Certificate) -> float:
        """Return the smaller of the proven bounds, or of both bounds if neither is proven."""
        values = {row.value: self.proven, row.simple: self.simple_proven}
        return min([value for value, proven in values.items() if proven] or values)

    def __str__(self) -> str:
        lines = [] if self.caveat is None else [self.caveat]
        published: dict[float, float] = self.published.values if "published" in vars(self) else {}
        columns = ["radius", "achieved", self.column, *(["published"] if published else []), "simple", "gamma"]
        lines.append(" ".join(f"{name:>10}" for name in columns))
        for row in self.rows:
            achieved = "-" if row.achieved is None else f"{row.achieved:.4f}"
            file = [rounded_up(published[row.radius])] if published else []
            bounds = (rounded_up(self.best_proven(row)), *file, rounded_up(row.simple))
            numbers = (f"{row.radius:.4g}", achieved, *bounds, f"{row.gamma:.4g}")
            lines.append(" ".join(f"{number:>10}" for number in numbers))
        label = "certified is proven" if self.caveat is None else "the estimate is not proven"
        ball = f"{norm_name(self.norm)} ball of W_{self.power}, {self.unit}, unbounded"
        if math.isfinite(self.label_cost):
            ball += f", labels change at {self.label_cost:g}"
        if self.confidence is not None:
            label += f", for the clients' true mixture with probability {self.confidence:g}"
        if self.dtype != "float64":
            label += f", with the rounding of {self.dtype}"
        if self.proven and not self.simple_proven:
            label += "; simple is an estimate"
        lines.append(f"{self.quantity.noun} in the {ball}; {label}")
        if self.source is not None and (prepare := self.source.clients.train.prepare).takes_numbers:
            columns = self.source.clients.columns
            lines.append(f"one standard deviation of each column: {factors_of(prepare, columns, 10**6)}")
        if published and self.caveat is None:
            pairs = [(published[row.radius], self.best_proven(row)) for row in self.rows]
            lines.append(why_published_differs(pairs, self.confidence is not None))
        return "\n".join(lines)

    __repr__ = __str__


def plot_certificates(runs: Mapping[str, Certificates], path: Path | None = None) -> Any:
    """Plot the certified and achieved losses of several runs against the radius."""
    from wafl.report.plotting import certificates_against_radius

    first = next(iter(runs.values()))
    curves = {name: certificates.curve() for name, certificates in runs.items()}
    return certificates_against_radius(curves, first.norm, first.unit, path)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
