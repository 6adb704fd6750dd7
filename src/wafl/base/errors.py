"""Errors other than bad input (a ``ValueError``), warnings, and the suggestion of similar names."""

import inspect
import warnings
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path


class DivergedError(RuntimeError):
    """Training produced a NaN or an infinity; the message names the round, the client and the likely cause."""


class TooFewRepliesError(RuntimeError):
    """Too few clients sent a usable reply after all repetitions of the round."""


class UnboundedError(RuntimeError):
    """The inner supremum is infinite, because nothing limits the move of an example."""


class UnsoundError(RuntimeError):
    """A certificate is below a loss inside its ball, which is a bug in wafl; the message has both numbers."""


class ConfigError(ValueError):
    """An experiment file has mistakes: one line per mistake, with the key, the range and the closest valid name."""


class FolderError(ValueError):
    """A study's folder exists already, is in use, is damaged, or is from a newer version; it was not changed."""


class UntrustedError(FolderError):
    """A study from another source names code, which would run when the study is read."""


class CheckpointError(ValueError):
    """A checkpoint is damaged, or belongs to another training or a newer version; it was not changed."""


class UnfitCheckpointError(CheckpointError):
    """A checkpoint is intact, but belongs to another training or another version."""


class TrainingWarning(UserWarning):
    """A warning during training; each kind has its own class."""


class ConcavityWarning(TrainingWarning):
    """Gamma is below the concavity limit, so the inner maximizer is no longer unique."""


class RadiusWarning(TrainingWarning):
    """The ball is not the requested one: no example moved, or the achieved radius is not the target."""


class OptimumWarning(TrainingWarning):
    """Training ended away from the optimum: a few joint steps of all clients lower the training objective."""


class UnitWarning(TrainingWarning):
    """A size or the inputs are so large, compared with the data, that they must have another unit."""


class DataWarning(UserWarning):
    """A property of the data makes training harder: columns on different scales, or clients with a single class."""


class LossWarning(TrainingWarning):
    """No loss was given, so the regression loss is used."""


class LabelCostWarning(TrainingWarning):
    """The label cost is so low that moving only the targets multiplies the loss."""


class DivergenceWarning(TrainingWarning):
    """The loss is far above its value in the first round; the message names the round and the suspicious clients."""


class SequentialWarning(TrainingWarning):
    """The model cannot be batched over clients, so they run one by one: slower, with the same results."""


class VersionWarning(TrainingWarning):
    """A study continues with another version of wafl or torch than before, so bits may differ."""


class CheckpointWarning(TrainingWarning):
    """The last checkpoint is damaged, so training resumes from the previous one and repeats the rounds since."""


class PreconditionError(ValueError):
    """A bound does not apply to the given model and data; the message names the failed precondition."""


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the first line of the call stack that is not in this package."""
    package, level, frame = str(Path(__file__).parents[1]), 1, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(package):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


ELSEWHERE = {
    **dict.fromkeys(("lr", "eta"), "learning_rate"),
    **dict.fromkeys(("mse", "l2"), "squared_error"),
    **dict.fromkeys(("ce", "nll"), "cross_entropy"),
    "epochs": "local_epochs",
    "wd": "weight_decay",
    "eps": "epsilon",
}
"""The names of the same things in other libraries."""


def nearest(word: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the known name that is most similar to a word, ignoring case; ties prefer the same beginning.

    >>> nearest("Wafel", ["FedAvg", "WAFL"]), nearest("lr", ["rounds", "learning_rate"]), nearest("x", ["rounds"])
    ('WAFL', 'learning_rate', None)
    """
    names = {name.lower().replace("_", "-"): name for name in known}
    word = word.lower().replace("_", "-")
    meant = word if word in names else ELSEWHERE.get(word, "").replace("_", "-")
    if meant in names:
        return names[meant]

    def likeness(name: str) -> tuple[float, bool]:
        return SequenceMatcher(None, word, name).ratio(), name[:1] == word[:1]

    close = get_close_matches(word, names, 3, cutoff)
    return names[max(close, key=likeness)] if close else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown word, or an empty text if no known name is similar.

    >>> did_you_mean("pdg", ["fgsm", "pgd"]), did_you_mean("x", ["pgd"])
    (": did you mean 'pgd'?", '')
    """
    near = nearest(word, known)
    return "" if near is None else f": did you mean {near!r}?"
