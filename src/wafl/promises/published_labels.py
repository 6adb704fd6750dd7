"""What a federation publishes about each of its labels, so that others can tell how far they are from it.

Per label: a few points (means of groups of its examples), their weights, how far the examples are from them (the
*spread*, a W_2), and the mean of phi_gamma at a few gammas. What leaks are these means of groups of examples, and the
shares of the labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from wafl.base.json_types import check_types
from wafl.base.norms import power_norm
from wafl.base.random import Purpose, choose
from wafl.data.examples import Examples
from wafl.promises.proof import Proof
from wafl.theory.certificates.mixture import Mixture
from wafl.weights.transport.costs import network_simplex

SIZES = (4, 16, 64, 256, 1024)
"""How many examples resamples have whose distance is published."""
RESAMPLES = 20
"""Times the number of labels, less 1, are drawn: one more is the farthest with probability 1/20 over that number."""
GAMMAS = 16
"""At how many gammas the surrogate of each label is published."""
FARTHEST = 20.0
"""Gammas go down to the slope over so many times the largest radius."""
CHUNK = 4096

LABEL: dict[str, Any] = {
    "label": int,
    "share": float,
    "examples": int,
    "points": list[list[float]],
    "weights": list[float],
    "spread": float,
    "loss": float,
    "surrogates": list[float],
    "resamples": dict[str, float],
}


@dataclass(frozen=True)
class Cell:
    """The federation's examples of one label, with their shares of the mixture."""

    x: Tensor
    share: Tensor

    def part(self, rows: Tensor) -> Cell:
        return Cell(self.x[rows], self.share[rows] / self.share[rows].sum())


def by_label(mixture: Mixture) -> tuple[Mixture, Tensor]:
    """The same examples with one "client" per client and label, and the label of each of these."""
    examples = mixture.examples
    client = torch.repeat_interleave(torch.arange(examples.num_clients), examples.num_examples)
    classes = int(examples.y.max()) + 1
    cell = client * classes + examples.y
    order = torch.argsort(cell, stable=True)
    found, counts = torch.unique_consecutive(cell[order], return_counts=True)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    cells = Examples(examples.raw.index_select(0, order), examples.y[order], offsets, examples.prepare)
    weights = mixture.weights[found // classes] * counts / examples.num_examples[found // classes]
    return Mixture(mixture.task, mixture.params, cells, weights), found % classes


def cells_of(mixture: Mixture) -> dict[int, Cell]:
    """Each label's examples, as long vectors."""
    examples, found = mixture.examples, dict[int, Cell]()
    share = torch.repeat_interleave(mixture.weights / examples.num_examples, examples.num_examples)
    for label in examples.y.unique().tolist():
        rows = (examples.y == label).nonzero()[:, 0]
        found[label] = Cell(examples.rows(rows, torch.float64).flatten(1), share[rows] / share[rows].sum())
    return found


def label_means(mixture: Mixture, values: Tensor, labels: Tensor) -> dict[int, list[float]]:
    """Means of each label from those of each client and label, ``[settings, cells]``."""
    found: dict[int, list[float]] = {}
    for label in labels.unique().tolist():
        here = labels == label
        share = mixture.weights[here] / mixture.weights[here].sum()
        found[label] = (values[:, here] @ share).tolist()
    return found


def distance(a: Tensor, a_share: Tensor, b: Tensor, b_share: Tensor, norm: float) -> float:
    """The exact W_2 between weighted points."""
    return math.sqrt(max(network_simplex(a_share, b_share, _costs(a, b, norm).numpy())[1], 0.0))


def _costs(a: Tensor, b: Tensor, norm: float) -> Tensor:
    return torch.cat([power_norm(part[:, None] - b[None], norm, 2) for part in a.split(256)])


def quantize(cell: Cell, points: Tensor, norm: float) -> tuple[Tensor, float]:
    """The weights of points if each example goes to the nearest, and how far examples are from them, in W_2."""
    weights, square = torch.zeros(len(points), dtype=torch.float64), 0.0
    for x, share in zip(cell.x.split(CHUNK), cell.share.split(CHUNK), strict=True):
        cost, place = torch.stack([power_norm(x - point, norm, 2) for point in points], dim=1).min(1)
        weights.index_add_(0, place, share)
        square += float(share @ cost)
    return weights, math.sqrt(square)


def centers(cell: Cell, count: int, seed: int) -> Tensor:
    """Means of groups of examples that are near each other."""
    from sklearn.cluster import KMeans

    count = min(count, len(cell.x.unique(dim=0)))
    grouped = KMeans(count, n_init=cast(Any, 1), random_state=seed).fit(
        cell.x.numpy(), sample_weight=cell.share.numpy()
    )
    return torch.from_numpy(grouped.cluster_centers_)


def resample_distances(
    cell: Cell, points: Tensor, weights: Tensor, norm: float, draws: int, seed: int
) -> dict[str, float]:
    """The largest distance to the points of new examples like these, of so many draws, by how many they are.

    New examples come from the distribution behind these, which is not known either: each draw first weighs these at
    random (the Bayesian bootstrap, Rubin 1981), so that the mean of n draws varies as ``1 / n + 1 / len(cell)``.
    """
    cost, found = _costs(cell.x, points, norm), dict[str, float]()
    random = np.random.default_rng(seed)
    for size in SIZES:
        if size > 2 * len(cell.x):
            break
        squares: list[float] = []
        for _ in range(draws):
            counts = random.multinomial(size, random.dirichlet(len(cell.x) * cell.share.numpy()))
            rows = counts.nonzero()[0]
            squares.append(network_simplex(torch.from_numpy(counts[rows] / size), weights, cost[rows].numpy())[1])
        found[str(size)] = math.sqrt(max(*squares, 0.0))
    return found


def halves(cell: Cell, seed: int) -> tuple[Cell, Cell]:
    """Points are means of one half of the examples, and resamples come from the other, to which no point was fitted."""
    cell = cell.part(cell.share > 0)
    first = torch.zeros(len(cell.x), dtype=torch.bool)
    first[choose(seed, Purpose.BOOTSTRAP, len(cell.x), (len(cell.x) + 1) // 2)] = True
    return cell.part(first), cell.part(~first)


def gammas_for(slope: float, limit: float, radii: Sequence[float]) -> list[float]:
    """Where the surrogates are published: up to the gamma of the smallest radius.

    From just above ``L_zz / 2``, if that limits gamma; otherwise from the gamma of ten times the largest radius: labels
    may be farther than any radius. Nowhere if L_zz is needed and unknown: then there is only the slope.
    """
    asked = [radius for radius in radii if radius > 0] or [1.0]
    if not math.isfinite(limit) or not slope > 0:
        return []
    least = limit * (1.0 + 1e-3) if limit > 0 else slope / (FARTHEST * max(asked))
    most = max(slope / min(asked), 2.0 * least)
    return [least * (most / least) ** (place / (GAMMAS - 1)) for place in range(GAMMAS)]


def publish(
    mixture: Mixture, proof: Proof, slope: float, radii: Sequence[float], points: int, rounding: float, seed: int = 0
) -> dict[str, Any]:
    """Everything above, as plain values; ``rounding`` is added upwards to what is certified."""
    gammas, cells = gammas_for(slope, proof.limit, radii), cells_of(mixture)
    split = {label: halves(cell, seed) for label, cell in cells.items()}
    chosen = {label: centers(first, points, seed) for label, (first, _) in split.items()}
    found = described(mixture, proof, gammas, chosen, rounding)
    for each in found:
        label, weights = each["label"], torch.tensor(each["weights"], dtype=torch.float64)
        about = (split[label][1], chosen[label], weights, proof.norm)
        each["resamples"] = resample_distances(*about, RESAMPLES * len(cells) - 1, seed)
    return {"gammas": gammas, "labels": found}


def described(
    mixture: Mixture, proof: Proof, gammas: Sequence[float], points: Mapping[int, Tensor], rounding: float
) -> list[dict[str, Any]]:
    """What follows from the examples once the points are chosen."""
    split, labels = by_label(mixture)
    means = torch.tensor(proof.means(split, gammas), dtype=torch.float64)
    surrogates = label_means(split, means.reshape(len(gammas), len(labels)), labels)
    losses = label_means(split, split.answers(None, [{}]).value, labels)
    found: list[dict[str, Any]] = []
    for label, cell in cells_of(mixture).items():
        weights, spread = quantize(cell, points[label], proof.norm)
        about = {"label": label, "share": float(split.weights[labels == label].sum()), "examples": len(cell.x)}
        certified = {
            "loss": losses[label][0] + rounding,
            "surrogates": [value + rounding for value in surrogates[label]],
        }
        at = {"points": points[label].tolist(), "weights": weights.tolist(), "spread": spread}
        found.append({**about, **at, **certified, "resamples": {}})
    return found


def certified_loss(label: Mapping[str, Any], gammas: Sequence[float], slope: float, radius: float) -> float:
    """``c_k(rho)``: the least over the published gammas, or the slope's bound if that is smaller."""
    by_duality = [gamma * radius**2 + value for gamma, value in zip(gammas, label["surrogates"], strict=True)]
    return min([*by_duality, label["loss"] + slope * radius])


def check_labels(published: Mapping[str, Any], inputs: int) -> None:
    """A ValueError unless everything that an audit needs is there, and fits."""
    check_types(published, {"gammas": list[float], "labels": list[dict[str, Any]]}, "labels")
    for each in published["labels"]:
        check_types(each, LABEL, "labels")
        shapes = {len(point) for point in each["points"]} == {inputs} and len(each["points"]) == len(each["weights"])
        if not shapes or len(each["surrogates"]) != len(published["gammas"]) or not each["spread"] >= 0:
            raise ValueError(f"labels: what is published about label {each['label']} does not fit together")
