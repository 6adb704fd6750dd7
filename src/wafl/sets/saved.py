"""Load prediction sets from disk."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from wafl.base.files import read_limited, unsealed
from wafl.base.json_types import as_type, check_types
from wafl.data.bring.intake import Intake
from wafl.promises.promise import digest_of
from wafl.results.run import Run
from wafl.sets.answers import Scorer
from wafl.sets.coverage import Coverage
from wafl.sets.prediction_sets import PredictionSets
from wafl.sets.scores import SCORES, Score
from wafl.sets.shifted import Shift
from wafl.sets.target import Target

SAVED: dict[str, Any] = {
    "format": int,
    "model": str,
    "score": {"type": str},
    "threshold": float | str,
    "target": dict[str, Any],
    "unit": str,
    "intake": dict[str, Any],
    "missing": list[str],
    "calibration": list[dict[str, Any]],
}
COLUMNS = (tuple[str, ...], tuple[int, ...], *[tuple[float, ...]] * 2, tuple[int, ...])
"""The types of a calibration's columns, as in :meth:`Coverage.rows`."""


def load_sets(path: str | os.PathLike[str], model: Run | nn.Module) -> PredictionSets:
    """Load prediction sets from a file of :meth:`wafl.PredictionSets.save`.

    Args:
        path: the file.
        model: the model of their calibration; the file has its digest.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{file} is not a file: give one that wafl.PredictionSets.save wrote")
    try:
        content = unsealed(read_limited(file))
        check_types(content, SAVED)
        if content["format"] != 1:
            raise ValueError(f"it has format {content['format']}, this version reads 1: update wafl-learn")
        score = _score(content["score"])
        target = _target(content["target"])
        intake = Intake.from_json(content["intake"])
        columns = zip(*(row.values() for row in content["calibration"]), strict=True)
        names, examples, covered, sizes, full = map(as_type, COLUMNS, columns)
        calibrated = Coverage(target.coverage, names, examples, covered, sizes, full, score.of_classes)
        if math.isnan(threshold := float(content["threshold"])):
            raise ValueError("its threshold is not a number")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} does not hold prediction sets, or was changed: {error}") from error
    module = model.module if isinstance(model, Run) else model
    if (digest := digest_of(module)) != content["model"]:
        raise ValueError(f"{file} is about the model {content['model']}, and this one is {digest}: give that model")
    scorer = Scorer.of_shape(model, score, intake.shape or ())
    rest = tuple(content["missing"]), content["unit"], intake
    return PredictionSets(scorer, threshold, target, digest, calibrated, *rest)


def _score(saved: Mapping[str, Any]) -> Score:
    kinds = {type(make()).__name__: type(make()) for make in SCORES.values()}
    if saved["type"] not in kinds:
        raise ValueError(f"its score {saved['type']} is not one of wafl's: calibrate again")
    return kinds[saved["type"]](**{name: value for name, value in saved.items() if name != "type"})


def _target(saved: Mapping[str, Any]) -> Target:
    shift = saved["shift"]
    options = {name: value for name, value in saved.items() if name not in ("type", "shift")}
    if shift is None:
        return Target(**options)
    moves: dict[str, Any] = {name: value for name, value in shift.items() if name != "type"}
    moves["norm"] = float(moves["norm"])
    return Target(**options, shift=Shift(**moves))
