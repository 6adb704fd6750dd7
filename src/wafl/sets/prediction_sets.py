"""Build prediction sets that cover the next client, from clients that did not train."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor, nn

from wafl.base.describe import describe
from wafl.base.files import check_place, sealed, write_whole
from wafl.base.options import NotNegative, frozen, naming
from wafl.data.arguments import check_arguments
from wafl.data.bring.intake import Intake
from wafl.data.federation import Federation
from wafl.promises.promise import digest_of
from wafl.report.sections import SetRow
from wafl.results.run import Run
from wafl.sets.answers import Scorer, check_grid
from wafl.sets.coverage import Coverage
from wafl.sets.held_out import check_held_out, check_source, read_clients
from wafl.sets.scores import Score, make_score
from wafl.sets.search import search, with_gamma
from wafl.sets.shifted import Shift, check_moves
from wafl.sets.target import About, Target
from wafl.sets.thresholds import on_grid
from wafl.theory.population.levels import check_invited, missing_line


@frozen
class PredictionSets:
    """Sets of labels that cover the next client's labels, with their promise."""

    scorer: Annotated[Scorer, "The model and the score."]
    threshold: Annotated[float, "The highest score of a label in a set; infinity if every set is full."]
    target: Annotated[Target, "What is promised."]
    digest: Annotated[str, "The digest of the model, as in certificates."]
    calibrated: Annotated[Coverage, "Coverage and size on the calibration clients."]
    missing: Annotated[tuple[str, ...], "Invited clients that did not answer."] = ()
    unit: Annotated[str, "The unit of the data."] = "input units"
    intake: Annotated[Intake, "How the model reads examples."] = Intake()

    @property
    def invited(self) -> int:
        """The number K of invited clients."""
        return len(self.calibrated.names) + len(self.missing)

    def predict(self, x: Any) -> Tensor:
        """Return the prediction sets of examples.

        For classes, ``[n, C]`` is True for each class in the set. For a regression, ``[n, 2]`` are intervals.
        """
        examples = self.intake.read(x, self.scorer.problem.params)
        return self.scorer.sets(self.scorer.outputs(examples), self.threshold)

    def evaluate(self, clients: Federation) -> Coverage:
        """Measure coverage and size on all examples of clients that neither trained nor calibrated."""
        options = {"of_classes": self.scorer.score.of_classes}
        return Coverage.of(read_clients(self.scorer, clients), self.threshold, self.target.coverage, **options)

    @property
    def statement(self) -> str:
        """The promise in one sentence."""
        return self.target.sentence(self.invited, self.unit)

    def row(self, label: str, clients: Federation) -> SetRow:
        """Return the row of a page for these sets on some clients."""
        measured = self.evaluate(clients)
        covered = list(zip(measured.names, measured.covered, strict=True))
        numbers = measured.mean, measured.size, sum(measured.full)
        return SetRow(label, self.statement, self.threshold, covered, *numbers)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the threshold, the promise and the calibration to a JSON file, without the model; return the file.

        :func:`wafl.load_sets` reads the file.
        """
        check_place(Path(path))
        content = {
            "format": 1,
            "statement": self.statement,
            "model": self.digest,
            "score": describe(self.scorer.score),
            "threshold": describe(self.threshold),
            "target": describe(self.target),
            "unit": self.unit,
            "intake": self.intake.to_json(),
            "missing": self.missing,
            "calibration": self.calibrated.rows(),
        }
        write_whole(Path(path), sealed(content))
        return Path(path)

    def __str__(self) -> str:
        lines = [
            f"{self.statement[:1].upper()}{self.statement[1:]}.",
            f"A set holds each label whose {self.scorer.score.name.replace('_', ' ')} is at most {self.threshold:.4g}.",
        ]
        if math.isinf(self.threshold):
            lines[1] = "Every set is full: use more calibration clients, more examples, or a lower coverage."
        if self.missing:
            lines.append(f"{missing_line(self.missing, self.invited)}.")
        return "\n".join([*lines, f"On the calibration clients: {self.calibrated}."])


@naming
def prediction_sets(
    model: Run | nn.Module,
    calibration: Federation,
    *,
    coverage: float = 0.9,
    about: About = "client",
    confidence: float | None = None,
    score: str | Score | None = None,
    radius: float = 0.0,
    norm: float = 2,
    power: int = 2,
    own_sampling: bool = False,
    training: Federation | None = None,
    invited: Sequence[str] | None = None,
    grid: Sequence[float] | None = None,
) -> PredictionSets:
    """Return prediction sets that cover the next client, from clients that did not train.

    The calibration clients must be drawn from the population of all clients, as with :meth:`wafl.Federation.hold_out`.
    All of their examples count. The promise is valid for each radius separately, not for several radii together.

    See Also:
        :func:`wafl.next_client`, :func:`wafl.load_sets`

    Args:
        model: a run or a model, with one output per class or, for a regression, one output.
        calibration: clients that did not train.
        coverage: the fraction of labels to cover.
        about: ``"client"`` to cover this fraction of the next client's examples, with a confidence; ``"example"`` to
            cover the next example of the next client with this probability.
        confidence: the probability of a promise about the next client. The default is 0.95, or the highest confidence
            that the clients support if it is lower. An unsupported value raises an error.
        score: ``"margin"``, ``"probability"``, ``"aps"`` or ``"raps"``; ``"residual"`` or ``"scaled_residual"`` for a
            regression; or a :class:`wafl.sets.scores.Score`. By default the margin, or the residual.
        radius: the maximum shift of the next client's examples, in the unit of the data; for the margin and the
            residual.
        norm: the ground norm, 1, 2 or inf.
        power: the order p of the Wasserstein distance, 1 or 2.
        own_sampling: if True, the promise about the next client is about its distribution, not only its examples.
        training: the clients that trained: none of them may calibrate. ``about="example"`` with a radius needs them.
        invited: the names of all invited clients, fixed before any of them answered. Clients that are not in
            `calibration` count as if none of their labels were covered.
        grid: the increasing thresholds to round up to; by default there is no rounding.

    >>> import wafl
    >>> seen, unseen = wafl.load_dataset("digits").partition(num_clients=60, iid=True).hold_out(0.5)
    >>> run = wafl.fit(wafl.models.mlr(seen), seen, wafl.FedAvg(), rounds=2, local_epochs=1)
    >>> sets = prediction_sets(run, unseen, coverage=0.8, training=seen)
    >>> sets.statement
    "the sets cover at least 80% of the next client's examples, with 95% confidence"
    >>> sets.predict(unseen.of_clients([0]).train.x).shape[1]
    10
    """
    check_arguments("prediction_sets(run, calibration)", model, calibration)
    NotNegative.check("radius", radius)
    shift = Shift(radius, norm, power) if radius > 0 else None
    target = Target(coverage, about, confidence, own_sampling, shift)
    check_held_out(calibration, training)
    missing = check_invited(invited, calibration.names)
    check_source(model, calibration)
    num_classes = model.num_classes if isinstance(model, Run) else calibration.num_classes
    scorer = Scorer.of(model, make_score(score, num_classes), calibration.examples)
    count = calibration.num_clients + len(missing)
    target = target.supported(count)
    if shift is not None:
        check_moves(scorer.problem, scorer.score)
        if about == "example":
            target = replace(target, shift=with_gamma(shift, scorer, training, coverage, count))
    thresholds = None if grid is None else check_grid(grid)
    clients = read_clients(scorer, calibration, None if shift is None else norm)
    if thresholds is None:
        threshold = search(list(clients.values()), target.shift, target.holds(count))
    else:
        answers = [client.answer(thresholds, target.shift) for client in clients.values()]
        threshold = on_grid(thresholds, answers, target.holds(count))
    calibrated = Coverage.of(clients, threshold, coverage, of_classes=scorer.score.of_classes)
    module, intake = (model.module, model.intake) if isinstance(model, Run) else (model, calibration.intake)
    about_data = missing, calibration.unit, intake
    return PredictionSets(scorer, threshold, target, digest_of(module), calibrated, *about_data)
