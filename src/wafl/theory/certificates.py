"""Upper bounds on the worst loss inside the ball: certificates that clients compute together.

By duality (the paper's duality equation), no distribution within ``radius`` of the clients' mixture has a larger
expected loss than ``gamma radius^2 + sum_i lambda_i E[phi_gamma]``, for any gamma. A certificate is the minimum of this
over gamma. For each gamma, each client sends two means over its examples: of an upper bound on phi_gamma, and of what
the examples' moves cost, which is the slope in gamma.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import nn

from wafl.attacks import WassersteinShift
from wafl.core.checks import check_seed
from wafl.core.norms import check_norm, norm_name
from wafl.core.task import Loss
from wafl.data.arguments import check_arguments
from wafl.data.federation import Federation
from wafl.plotting import Curve, certificates_against_radius
from wafl.run import Run
from wafl.theory.constant import Constant
from wafl.theory.constants import input_constants
from wafl.theory.dual import Surrogate, minimize_dual
from wafl.theory.mixture import Means, Mixture
from wafl.theory.upper import UpperBound
from wafl.weights import ClientWeights


@dataclass(frozen=True)
class Certificate:
    """For every distribution within ``radius`` the expected loss is at most ``value``, found at ``gamma``.

    ``simple`` is the cruder bound ``E[loss] + L_z radius``. ``achieved`` is the loss of a distribution inside the ball,
    the one that :class:`wafl.WassersteinShift` finds, so the truth lies between it and the smaller of the two bounds.
    """

    radius: float
    value: float
    gamma: float
    simple: float
    achieved: float | None

    @property
    def best(self) -> float:
        return min(self.value, self.simple)

    @property
    def gap(self) -> float | None:
        """How far the truth may lie below the better certificate; negative if an estimate was too small."""
        return None if self.achieved is None else self.best - self.achieved


@dataclass(frozen=True)
class Certificates:
    """One certificate per radius. ``proven`` says whether each ``value`` is proven: not if L_zz is an estimate."""

    rows: tuple[Certificate, ...]
    loss: float
    norm: float
    unit: str
    L_z: Constant
    L_zz: Constant

    @property
    def proven(self) -> bool:
        return self.L_zz.proven

    @property
    def simple_proven(self) -> bool:
        return self.L_z.proven

    def __getitem__(self, place: int) -> Certificate:
        return self.rows[place]

    def __len__(self) -> int:
        return len(self.rows)

    def to_json(self) -> dict[str, Any]:
        """Plain values, with None for infinity."""
        rows = [{name: _finite(value) for name, value in vars(row).items()} for row in self.rows]
        constants = {
            name: {"value": _finite(float(value)), "kind": value.kind, "why": value.why}
            for name, value in (("L_z", self.L_z), ("L_zz", self.L_zz))
        }
        norm = norm_name(self.norm)
        return {"loss": self.loss, "norm": norm, "unit": self.unit, "constants": constants, "certificates": rows}

    def plot(self, path: str | os.PathLike[str] | None = None, **others: Certificates) -> Any:
        """Plot certified and achieved loss against the radius, together with those of ``others``, by name."""
        return plot_certificates({"this run": self, **others}, None if path is None else Path(path))

    def curve(self) -> Curve:
        """The best certificate for each radius, in ascending order, as a figure needs it."""
        rows = sorted(self.rows, key=lambda row: row.radius)
        reached = [row.achieved for row in rows if row.achieved is not None]
        return Curve(
            [row.radius for row in rows],
            [row.best for row in rows],
            reached if len(reached) == len(rows) else None,
            self.proven or self.simple_proven,
            self.loss,
        )

    def __str__(self) -> str:
        lines = [f"{'radius':>10} {'achieved':>10} {'certified':>10} {'simple':>10} {'gamma':>10}"]
        for row in self.rows:
            achieved = "-" if row.achieved is None else f"{row.achieved:.4f}"
            numbers = (f"{row.radius:.4g}", achieved, f"{row.value:.4f}", f"{row.simple:.4f}", f"{row.gamma:.4g}")
            lines.append(" ".join(f"{number:>10}" for number in numbers))
        label = "proven" if self.proven else "an estimate: L_zz is not proven"
        return "\n".join([*lines, f"{norm_name(self.norm)} ball, {self.unit}, unbounded; certified is {label}"])


def plot_certificates(runs: Mapping[str, Certificates], path: Path | None = None) -> Any:
    """A matplotlib figure of the certified and achieved losses of several runs against the radius."""
    first = next(iter(runs.values()))
    curves = {name: certificates.curve() for name, certificates in runs.items()}
    return certificates_against_radius(curves, first.norm, first.unit, path)


def certify(
    model: Run | nn.Module,
    clients: Federation,
    *,
    radii: Sequence[float],
    norm: float = 2,
    part: Literal["train", "test"] = "train",
    client_weights: ClientWeights | None = None,
    curvature: float | None = None,
    achieved: bool = True,
    loss: Loss | None = None,
    seed: int = 0,
) -> Certificates:
    """How large the expected loss can be under any distribution within each radius of the clients' mixture.

    The mixture is that of the clients' examples at hand; for the distributions they come from, see
    :mod:`wafl.theory.bounds`. Labels stay fixed. The ball is unbounded: its distributions may leave the box of the
    data, and the certificate holds for those inside it too. L_zz is known for linear models with cross-entropy or
    squared error and for smooth networks; otherwise it is estimated, and ``proven`` is False. Everything is computed
    in float64.

    Args:
        model: a model, or a run, which brings its own loss and client weights.
        clients: whose examples are mixed.
        radii: in the unit of the data; at least one.
        norm: the ground norm, 1, 2 or inf.
        part: ``"train"`` or ``"test"`` examples.
        client_weights: the center of the ball; by default the run's final weights, or by examples for a plain model.
        curvature: a bound on L_zz that you have proven yourself.
        achieved: whether to look for a bad distribution inside each ball too, which needs all examples in one place.
        loss: the loss to use instead of the run's own; cross-entropy for a plain model.
        seed: of the adversary.

    >>> import wafl
    >>> clients = wafl.load_dataset("digits").partition(num_clients=4, iid=True)
    >>> run = wafl.fit(wafl.models.mlr(clients), clients, wafl.WAFL(gamma=1.0), rounds=2, local_epochs=1)
    >>> row = certify(run, clients, radii=[0.5])[0]
    >>> row.achieved <= row.value <= row.simple
    True
    """
    check_arguments("certify(model, clients, radii=[...])", model, clients)
    check_norm(norm)
    check_seed(seed)
    wanted = check_radii(radii)
    if curvature is not None and not (curvature >= 0 and math.isfinite(curvature)):
        raise ValueError(f"curvature={curvature} must be finite and at least 0")
    mixture = Mixture.of(model, clients, part, client_weights, loss)
    known = input_constants(mixture.task, mixture.params, clients, norm)

    def reach(radius: float) -> float | None:
        return mixture.loss_under(WassersteinShift(radius, norm=norm, bounds=None), seed) if achieved else None

    bent = known["L_zz"] if curvature is None else Constant(curvature, "bound", "given")
    return certificates_of(
        partial(mixture.means, seed=seed), wanted, norm, clients.unit, known["L_z"], bent, achieved=reach
    )


def certificates_of(
    means: Callable[[UpperBound | None, Sequence[Mapping[str, float]]], Means],
    radii: Sequence[float],
    norm: float,
    unit: str,
    steep: Constant,
    bent: Constant,
    achieved: Callable[[float], float | None] = lambda radius: None,
) -> Certificates:
    """The certificates of a mixture whose clients answer with two numbers per gamma, wherever they are.

    ``means`` asks the clients; ``steep`` and ``bent`` are L_z and L_zz.
    """
    clean = means(None, [{}]).value[0]

    def ask(gammas: Sequence[float]) -> list[Surrogate]:
        found = means(UpperBound(norm), [{"gamma": gamma, "curvature": float(bent)} for gamma in gammas])
        return [Surrogate(value, cost) for value, cost in zip(found.value, found.cost, strict=True)]

    rows: list[Certificate] = []
    for radius, (value, gamma) in zip(radii, minimize_dual(ask, radii, bent / 2.0, clean), strict=True):
        simple = clean + steep * radius if radius > 0 else clean
        rows.append(Certificate(radius, value, gamma, simple, achieved(radius)))
    return Certificates(tuple(rows), clean, norm, unit, steep, bent)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def check_radii(radii: Sequence[float]) -> list[float]:
    if isinstance(radii, str | float | int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"radii={radii!r} must be a list of numbers, such as [{radii}]")
    wanted = [float(radius) for radius in radii]
    if not wanted:
        raise ValueError("radii is empty: give at least one, in the unit of the data")
    for radius in wanted:
        if not (radius >= 0 and math.isfinite(radius)):
            raise ValueError(f"radius={radius} must be finite and at least 0, in the unit of the data")
    return wanted
