"""Checks a certificate: what can be recomputed from the file, the model and the data is, and the rest is attested."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from wafl.base.norms import NORMS, norm_name
from wafl.data.federation import Federation
from wafl.promises.in_words import statement
from wafl.promises.issue import CHECKS, bound_of, client_digest, digest_of, to_bytes
from wafl.promises.proof import Proof
from wafl.promises.published_labels import described
from wafl.promises.read import read_file
from wafl.promises.sign import is_signed_by
from wafl.results.run import Run
from wafl.tasks.task import Loss
from wafl.theory.certificates.mixture import Mixture
from wafl.theory.certificates.rounding import allowance, allowance_of_errors, magnitudes, slack_of_errors
from wafl.theory.certificates.sampling import Domain, Moments, largest_surrogate
from wafl.theory.certificates.upper import ErrorSurrogate, Report, report_for, setting_of
from wafl.theory.constants.assumptions import data_free_constants, task_of
from wafl.theory.constants.constant import Constant
from wafl.weights import uniform

AGREE = 1e-9
"""How far numbers that another machine computes may differ, relative to the larger of 1 and their size."""

FINER = (4.0, 16.0)
"""By what the tolerance of a search is divided if what was published is below what the search proves."""

UNKNOWN = {"value": math.inf}
COMPUTED = "from what was computed"
DRAWS = "the examples are independent draws that model, weights, gammas and bets do not depend on"

Pairs = list[tuple[float, float]]
Status = Literal["recomputed", "attested", "wrong"]


@dataclass(frozen=True)
class Line:
    """One line of a certificate: ``recomputed`` and found to be so, only ``attested``, or ``wrong``."""

    name: str
    status: Status
    why: str


@dataclass(frozen=True)
class Verification:
    """What :func:`verify` found, line by line; ``signed`` is whether the owner of the given key signed the file."""

    lines: tuple[Line, ...]
    signed: bool
    values: Mapping[float, float]
    content: Mapping[str, Any]

    @property
    def ok(self) -> bool:
        """Whether no line is wrong; lines that are only attested may still be untrue."""
        return all(line.status != "wrong" for line in self.lines)

    def __str__(self) -> str:
        return "\n".join(f"{line.name:<12} {line.status:<11} {line.why}" for line in self.lines)


def verify(
    file: str | os.PathLike[str],
    *,
    model: Run | nn.Module | None = None,
    data: Federation | None = None,
    key: str | os.PathLike[str] | None = None,
    loss: Loss | None = None,
) -> Verification:
    """Recompute what a certificate says, as far as the model and the data at hand allow.

    Args:
        file: what :meth:`Promise.save` wrote.
        model: the model that it is about.
        data: clients that it is about, all or some of them, known by their names.
        key: the file of an Ed25519 public key: a file that its owner did not sign, byte by byte, is refused.
        loss: the loss, if it is your own.

    Returns:
        Every line of the certificate, with what was found.
    """
    path = Path(file)
    promise, signature = read_file(path)
    if key is not None:
        _check_signature(path, promise.content, signature, key)
    content = promise.content
    checker = _Checker(content, model, data, loss)
    return Verification(tuple(checker.lines()), key is not None, promise.values, content)


def _check_signature(
    path: Path, content: Mapping[str, Any], signature: str | None, key: str | os.PathLike[str]
) -> None:
    if signature is None:
        raise ValueError(f"{path} is not signed: ask who issued it for a signed one, or leave the key out")
    if not is_signed_by(to_bytes(content), signature, key):
        raise ValueError(f"{path} was not signed with this key, or was changed since: do not rely on it")


class _Checker:
    """Each line of a certificate against what can be recomputed."""

    def __init__(
        self, content: Mapping[str, Any], model: Run | nn.Module | None, data: Federation | None, loss: Loss | None
    ) -> None:
        self._content, self._model, self._data = content, model, data
        self._errors = content["claim"]["metric"] == "error"
        self._names: list[str] = [client["name"] for client in content["clients"]]
        norms = {norm_name(norm): norm for norm in NORMS}
        if content["claim"]["norm"] not in norms:
            raise ValueError(f"norm {content['claim']['norm']!r} is not one of {', '.join(norms)}")
        self._norm = norms[content["claim"]["norm"]]
        self._shared = [] if data is None else [name for name in data.names if name in self._names]
        if data is not None and not self._shared:
            raise ValueError(
                f"the data are those of {', '.join(data.names[:5])}, and the certificate is about "
                f"{', '.join(self._names[:5])}: give data of clients that it is about"
            )
        self._task = None if model is None else task_of(model, loss)
        self._loss = loss

    def lines(self) -> Iterator[Line]:
        checks: dict[str, Callable[[], Line]] = {
            "statement": self._statement,
            "weights": self._weights,
            "values": self._values,
            "model": self._digest,
            "constants": self._constants,
            "rounding": self._rounding,
            "examples": self._examples,
            "losses": self._losses,
            "surrogates": self._surrogates,
            "range": self._range,
            "draws": lambda: Line("draws", "attested", DRAWS),
            "labels": self._labels,
        }
        sampled = self._content["claim"]["confidence"] is not None
        absent = {*(() if sampled else ("range", "draws")), *(() if "labels" in self._content else ("labels",))}
        for name in CHECKS:
            if name not in absent:
                yield checks[name]() if name in checks else Line(name, "attested", self._said(name))

    def _said(self, name: str) -> str:
        found = self._content[name]
        return ", ".join(f"{key} {value}" for key, value in found.items()) if isinstance(found, dict) else str(found)

    def _statement(self) -> Line:
        same = statement(self._content) == self._content["statement"]
        return _line("statement", same, "its words follow from its numbers", "its words are not those of its numbers")

    def _weights(self) -> Line:
        weights = [client["weight"] for client in self._content["clients"]]
        sound = all(weight >= 0 for weight in weights) and abs(math.fsum(weights) - 1.0) <= AGREE
        return _line("weights", sound, "none is negative, and they sum to 1", "they are not shares that sum to 1")

    def _values(self) -> Line:
        """A row promises no less than what its own numbers prove."""
        weights, sizes = ([client[key] for client in self._content["clients"]] for key in ("weight", "examples"))
        confidence = self._content["claim"]["confidence"]
        levels = [row["sampling"]["level"] for row in self._content["certificates"] if "sampling" in row]
        if confidence is not None and not math.fsum(levels) <= 1.0 - confidence + AGREE:
            return Line("values", "wrong", f"the levels {levels} add up to more than 1 - {confidence:g}")
        slope, bend = (self._content["constants"].get(name, UNKNOWN)["value"] for name in ("L_z", "L_zz"))
        for row in self._content["certificates"]:
            if (row["proof"] == "duality") != (row["gamma"] is not None) or row["rounding"] < 0 or row["radius"] < 0:
                return Line("values", "wrong", f"the row of radius {row['radius']:g} is not one that wafl writes")
            if self._errors and row["proof"] != "duality":
                return Line("values", "wrong", f"radius {row['radius']:g}: an error rate has no slope")
            # A search proves phi_gamma at every positive gamma, the curvature only above L_zz / 2.
            floor = bend / 2.0 if row["tolerance"] is None and not self._errors else 0.0
            if row["gamma"] is not None and not row["gamma"] > floor:
                return Line("values", "wrong", f"radius {row['radius']:g}: gamma is not above {floor:.4g}")
            proven = bound_of(row, weights, sizes, slope) + row["rounding"]
            proven = min(proven, 1.0) if self._errors else proven
            if not proven <= row["value"]:
                return Line("values", "wrong", f"radius {row['radius']:g}: {row['value']} is below {proven}, its proof")
        return Line("values", "recomputed", "each follows from gamma, the clients' numbers, L_z and the rounding")

    def _digest(self) -> Line:
        if self._model is None:
            return _without("model", "the model")
        found = digest_of(self._model)
        same = found == self._content["model"]["sha256"]
        return _line("model", same, f"SHA-256 {found[:16]}...", f"this model has SHA-256 {found[:16]}...")

    def _constants(self) -> Line:
        if self._task is None:
            return _without("constants", "the model")
        if self._errors:
            linear = self._task[0].linear(self._task[1][None]) is not None
            return _line("constants", linear, "a linear classifier needs none", "the model is not a linear classifier")
        task, params = self._task
        known = data_free_constants(task, params, self._content["claim"]["inputs"], self._norm)
        said: dict[str, Any] = self._content["constants"]
        if given := [name for name, value in said.items() if name not in known or value["why"] == "given"]:
            return Line("constants", "attested", f"{' and '.join(given)}: no proof is known here")
        for name, value in said.items():
            if not value["value"] >= float(known[name]) * (1.0 - AGREE):
                return Line("constants", "wrong", f"{name} is {float(known[name]):.6g}, not {value['value']:.6g}")
        return Line(
            "constants", "recomputed", ", ".join(f"{name} {value['value']:.4g}" for name, value in said.items())
        )

    def _rounding(self) -> Line:
        if self._task is None:
            return _without("rounding", "the model")
        clients, (task, params) = self._content["clients"], self._task
        sizes, large = ([client[name] for client in clients] for name in ("examples", "magnitude"))
        for row in self._content["certificates"]:
            if self._errors:
                needed = slack_of_errors(self._content["claim"]["inputs"], max(large))
                if row["slack"] < needed * (1.0 - 1e-3):
                    return Line("rounding", "wrong", f"a slack of {row['slack']:.2g} is below {needed:.2g}")
            by_size = allowance(task, params, sizes, max(large), row["radius"], self._norm, row["value"])
            least = allowance_of_errors(sizes) if self._errors else by_size
            if row["rounding"] < least * (1.0 - 1e-3):
                return Line(
                    "rounding", "wrong", f"radius {row['radius']:g}: {row['rounding']:.2g} is below {least:.2g}"
                )
        most = max(row["rounding"] for row in self._content["certificates"])
        return Line("rounding", "recomputed", f"at most {most:.2g} is added for what float64 may have lost")

    def _examples(self) -> Line:
        if self._data is None:
            return _without("examples", "the data")
        part, known = self._content["claim"]["part"], dict(zip(self._names, self._content["clients"], strict=True))
        examples = self._data.train if part == "train" else self._data.test
        for place, name in enumerate(self._data.names):
            if name not in known:
                continue
            count, digest = int(examples.num_examples[place]), client_digest(self._data, part, place)
            if count != known[name]["examples"] or digest != known[name]["sha256"]:
                return Line("examples", "wrong", f"{name} has other {part} examples ({count}) than the certificate")
        return Line("examples", "recomputed", self._of_whom())

    def _losses(self) -> Line:
        """The clients' mean losses and magnitudes."""
        found = self._mixture_and_places()
        if found is None:
            return _without("losses", CHECKS["losses"] or "")
        mixture, places = found
        losses, large = mixture.answers(None, [{}]).value[0].tolist(), magnitudes(mixture)
        clients = self._content["clients"]
        pairs = [(clients[there]["loss"], losses[here]) for here, there in places]
        pairs += [(clients[there]["magnitude"], large[here]) for here, there in places]
        worst = max((_apart(said, now) for said, now in pairs), default=0.0)
        return _line("losses", worst <= AGREE, self._of_whom(), f"they differ by up to {worst:.2g} {COMPUTED}")

    def _surrogates(self) -> Line:
        """The clients' mean surrogates: the same digits, or proven again by a search of one's own."""
        found = self._mixture_and_places()
        if found is None:
            return _without("surrogates", CHECKS["surrogates"] or "")
        again: list[float] = []
        for row in self._content["certificates"]:
            if "sampling" in row:
                pairs = self._sampled(row, *found)
            elif row["proof"] == "duality":
                pairs = self._surrogates_of(row, *found, row["tolerance"])
            else:
                continue
            worst = max((_apart(said, now) for said, now in pairs), default=0.0)
            if worst <= AGREE:
                continue
            if row["tolerance"] is None or "sampling" in row:
                return Line("surrogates", "wrong", f"they differ by up to {worst:.2g} {COMPUTED}")
            if short := self._short_by(row, *found, pairs):
                return Line("surrogates", "wrong", f"they are up to {short:.2g} below what a finer search proves")
            again.append(row["radius"])
        radii = ", ".join(f"{radius:g}" for radius in again)
        said = f"{self._of_whom()}; proven again, not the same digits, at radius {radii}" if again else self._of_whom()
        return Line("surrogates", "recomputed", said)

    def _short_by(self, row: Mapping[str, Any], mixture: Mixture, places: list[tuple[int, int]], pairs: Pairs) -> float:
        """How far a row's numbers are below what a search proves of them, at the same tolerance or a finer one.

        On another machine, the last bits of float64 may end a search earlier or later. Whatever a search proves is
        true, so numbers that are not below it are proven.
        """
        short = max(_below(*pair) for pair in pairs)
        for finer in FINER:
            if short > AGREE:
                pairs = self._surrogates_of(row, mixture, places, row["tolerance"] / finer)
                short = min(short, max(_below(*pair) for pair in pairs))
        return short if short > AGREE else 0.0

    def _surrogates_of(
        self, row: Mapping[str, Any], mixture: Mixture, places: list[tuple[int, int]], tolerance: float | None
    ) -> Pairs:
        """What a row says about each client here, with what is computed."""
        report, setting = self._asked({**row, "tolerance": tolerance})
        values = mixture.answers(report, [setting]).value[0].tolist()
        return [(row["clients"][there], values[here]) for here, there in places]

    def _mixture_and_places(self) -> tuple[Mixture, list[tuple[int, int]]] | None:
        """The clients' examples, and where each client is in the data and in the certificate."""
        if self._model is None or self._data is None:
            return None
        mixture = Mixture.of(self._model, self._data, self._content["claim"]["part"], uniform(), self._loss)
        named = enumerate(self._data.names)
        return mixture, [(here, self._names.index(each)) for here, each in named if each in self._names]

    def _asked(self, row: Mapping[str, Any]) -> tuple[Report | None, dict[str, float]]:
        """What clients were asked for a row; None is the loss."""
        if row["gamma"] is None:
            return None, {}
        if self._errors:
            return ErrorSurrogate(self._norm, slack=row["slack"]), {"gamma": row["gamma"]}
        bend = self._content["constants"].get("L_zz", UNKNOWN)["value"]
        setting = setting_of(row["gamma"], bend, row["tolerance"])
        return report_for(setting, self._norm), setting

    def _sampled(self, row: Mapping[str, Any], mixture: Mixture, places: list[tuple[int, int]]) -> Pairs:
        """What a row says about its sample: means and second moments, with what they are here."""
        report, setting = self._asked(row)
        now = Moments(report).ask(mixture, setting, row["sampling"]["most"])
        pairs = [(row["clients"][there], now.means[here]) for here, there in places]
        return pairs + [(row["sampling"]["seconds"][there], now.seconds[here]) for here, there in places]

    def _range(self) -> Line:
        """No example can have a larger surrogate than a row says."""
        if self._task is None:
            return _without("range", "the model")
        if self._errors:
            least = min(row["sampling"]["most"] for row in self._content["certificates"])
            return _line("range", least >= 1.0, "error rates lie in [0, 1]", f"{least:g} is below 1")
        said, slope = self._content["claim"]["domain"], self._content["constants"].get("L_z", UNKNOWN)["value"]
        low, high = said["box"]
        domain = Domain(tuple(said["shape"]), (low, high), said["num_classes"])
        steep = Constant(slope, "bound", "as the certificate says")
        for row in self._content["certificates"]:
            gamma = math.inf if row["gamma"] is None else row["gamma"]
            least, most = largest_surrogate(*self._task, domain, steep, gamma, self._norm), row["sampling"]["most"]
            if not most >= least * (1.0 - AGREE):
                return Line("range", "wrong", f"radius {row['radius']:g}: {most:.6g} is below {least:.6g}")
        return Line("range", "recomputed", f"from examples in [{low:g}, {high:g}]")

    def _labels(self) -> Line:
        """What is published about each label, from the points and all examples; resamples are attested."""
        if self._model is None or self._data is None or len(self._shared) < len(self._names):
            return _without("labels", CHECKS["labels"])
        weight = {client["name"]: client["weight"] for client in self._content["clients"]}
        weights = torch.tensor([weight.get(name, 0.0) for name in self._data.names], dtype=torch.float64)
        mixture = Mixture.of(self._model, self._data, self._content["claim"]["part"], uniform(), self._loss)
        mixture = replace(mixture, weights=weights / weights.sum())
        said: dict[int, Any] = {each["label"]: each for each in self._content["labels"]["labels"]}
        points = {label: torch.tensor(each["points"], dtype=torch.float64) for label, each in said.items()}
        missing = set(mixture.examples.y.unique().tolist()) ^ said.keys()
        if missing:
            return Line("labels", "wrong", f"labels {sorted(missing)} are only in one of certificate and data")
        pairs: Pairs = []
        proof = Proof.of(mixture.task, self._norm, self._content["constants"].get("L_zz", UNKNOWN)["value"])
        gammas: list[float] = self._content["labels"]["gammas"]
        if not all(gamma > proof.limit for gamma in gammas):
            return Line("labels", "wrong", f"gamma is not above {proof.limit:.4g}")
        for now in described(mixture, proof, gammas, points, 0.0):
            then = said[now["label"]]
            pairs += [(then[name], now[name]) for name in ("share", "spread", "loss", "examples")]
            pairs += [*zip(then["weights"] + then["surrogates"], now["weights"] + now["surrogates"], strict=True)]
        worst = max(_apart(*pair) for pair in pairs)
        return _line("labels", worst <= AGREE, f"of {len(said)} labels", f"they differ by up to {worst:.2g}")

    def _of_whom(self) -> str:
        found, every = len(self._shared), len(self._names)
        return (
            f"of all {every} clients" if found == every else f"of {found} of {every} clients; the others are attested"
        )


def _apart(said: float, now: float) -> float:
    return abs(said - now) / max(1.0, abs(now))


def _below(said: float, now: float) -> float:
    return (now - said) / max(1.0, abs(now))


def _line(name: str, holds: bool, fine: str, wrong: str) -> Line:
    return Line(name, "recomputed", fine) if holds else Line(name, "wrong", wrong)


def _without(name: str, what: str) -> Line:
    return Line(name, "attested", f"not checked: give {what}")
