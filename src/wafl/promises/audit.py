"""Am I inside? How far a prospective site's data are from a federation's, label by label, and what that certifies.

Labels do not move, and a site has label shares ``pi_k`` of its own. So each label has its own ball: if the site's
examples of label k are within ``rho_k`` (W_2) of the federation's, their expected loss is at most
``c_k(rho_k) = min over gamma of gamma rho_k^2 + E[phi_gamma | k]``, and the site's is at most
``sum_k pi_k c_k(rho_k)``. From what a federation publishes (``published_labels.py``), ``rho_k`` is bounded by the
triangle inequality: the site's distance to the published points, plus the spread of the federation's examples around
them. Nothing leaves the site.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from wafl.base.norms import NORMS, norm_name
from wafl.data.federation import Federation
from wafl.promises.issue import digest_of
from wafl.promises.published_labels import by_label, cells_of, certified_loss, distance, label_means
from wafl.promises.read import read_file
from wafl.results.run import Run
from wafl.tasks.task import Loss
from wafl.theory.certificates.mixture import Mixture
from wafl.weights import by_examples


@dataclass(frozen=True)
class LabelAudit:
    """One label of a site: its share and number of examples, its distance, and what is certified and measured.

    ``resample`` is the farthest of 19 draws of about as many examples of the federation itself: sampling alone makes
    distances large in many dimensions. ``inside`` is whether the site is no farther; another such draw of the
    federation's examples is inside with probability 0.95. None: the site has too few examples of the label to tell.
    """

    label: int
    share: float
    examples: int
    distance: float
    resample: float | None
    certified: float
    measured: float

    @property
    def inside(self) -> bool | None:
        return None if self.resample is None else self.distance <= self.resample


@dataclass(frozen=True)
class Audit:
    """What a certificate says about a site: ``certified`` is at least its expected loss, ``measured`` its mean loss."""

    labels: tuple[LabelAudit, ...]
    norm: str
    unit: str

    @property
    def certified(self) -> float:
        return math.fsum(each.share * each.certified for each in self.labels)

    @property
    def measured(self) -> float:
        return math.fsum(each.share * each.measured for each in self.labels)

    def __str__(self) -> str:
        heads = ("label", "share", "examples", "distance", "resample", "certified", "measured")
        rows = [heads, *(self._cells(each) for each in self.labels)]
        rows.append(("all", "1", str(sum(each.examples for each in self.labels)), "", "", *self._totals()))
        return "\n".join(" ".join(f"{cell:>10}" for cell in row) for row in rows)

    def _cells(self, each: LabelAudit) -> tuple[str, ...]:
        near = "-" if each.resample is None else f"{each.resample:.4g}"
        counts = (str(each.label), f"{each.share:.3f}", str(each.examples), f"{each.distance:.4g}", near)
        return (*counts, f"{each.certified:.4f}", f"{each.measured:.4f}")

    def _totals(self) -> tuple[str, str]:
        return f"{self.certified:.4f}", f"{self.measured:.4f}"


def audit(file: str | os.PathLike[str], model: Run | nn.Module, data: Federation, *, loss: Loss | None = None) -> Audit:
    """How far a site's data are from those of a certificate, label by label, and what it certifies for the site.

    Check the certificate itself with :func:`wafl.verify` first.

    Args:
        file: a certificate that was issued with ``points``, so that it says where each label's examples are.
        model: the model that it is about.
        data: the site's own examples, with labels; all clients in it together are the site.
        loss: the loss, if it is your own.
    """
    path = Path(file)
    content = read_file(path)[0].content
    if "labels" not in content:
        raise ValueError(f"{path} does not say where its labels' examples are: ask for one made with --points 16")
    if digest_of(model) != content["model"]["sha256"]:
        raise ValueError(f"{path} is about another model: give the one that it is about")
    claim = content["claim"]
    if math.prod(data.input_shape) != claim["inputs"]:
        raise ValueError(f"the examples have {math.prod(data.input_shape)} inputs, the certificate's {claim['inputs']}")
    norm = {norm_name(each): each for each in NORMS}[claim["norm"]]
    whole = replace(data, train=data.train.joined(data.test))
    mixture = Mixture.of(model, whole, "train", by_examples(), loss)
    split, labels = by_label(mixture)
    measured = label_means(split, split.answers(None, [{}]).value, labels)
    published = {each["label"]: each for each in content["labels"]["labels"]}
    slope = content["constants"].get("L_z", {"value": math.inf})["value"]
    found: list[LabelAudit] = []
    for label, cell in cells_of(mixture).items():
        about = (label, float(split.weights[labels == label].sum()), len(cell.x))
        if label not in published:
            found.append(LabelAudit(*about, math.inf, None, math.inf, measured[label][0]))
            continue
        said = published[label]
        points, weights = (torch.tensor(said[name], dtype=torch.float64) for name in ("points", "weights"))
        far = distance(cell.x, cell.share, points, weights, norm) + said["spread"]
        certified = certified_loss(said, content["labels"]["gammas"], slope, far)
        found.append(LabelAudit(*about, far, _resample(said, len(cell.x)), certified, measured[label][0]))
    return Audit(tuple(found), claim["norm"], claim["unit"])


def _resample(said: dict[str, Any], size: int) -> float | None:
    """The distance of the largest published resample that is no larger than the site."""
    sizes = [int(each) for each in said["resamples"] if int(each) <= size]
    return said["resamples"][str(max(sizes))] + said["spread"] if sizes else None
