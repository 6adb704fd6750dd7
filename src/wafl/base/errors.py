"""Errors besides bad input (a ``ValueError``), warnings, and the names that messages suggest."""

import inspect
import warnings
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path


class DivergedError(RuntimeError):
    """Training produced a NaN or an infinity; the message has the round, the client and the likely cause."""


class TooFewRepliesError(RuntimeError):
    """Too few clients gave a usable reply, however often the round was repeated."""


class UnboundedError(RuntimeError):
    """The inner supremum is infinite: nothing limits how far an example may move."""


class UnsoundError(RuntimeError):
    """A certificate lies below what was reached inside its ball: a mistake in wafl; the message has both numbers."""


class ConfigError(ValueError):
    """An experiment file has mistakes: one line per mistake, with the key, the range and the closest valid name."""


class FolderError(ValueError):
    """The folder of a study is taken, in use, damaged, or from a newer version; nothing in it was changed."""


class UntrustedError(FolderError):
    """A study from somewhere else names code, which would run if the study were read."""


class CheckpointError(ValueError):
    """A checkpoint is damaged, or from a different training or a newer version; nothing was changed."""


class UnfitCheckpointError(CheckpointError):
    """A checkpoint is sound, but of a different training or another version."""


class TrainingWarning(UserWarning):
    """What a run should be told while it trains; each kind has a class of its own."""


class ConcavityWarning(TrainingWarning):
    """Gamma fell below the concavity limit: the inner maximizer is no longer unique."""


class RadiusWarning(TrainingWarning):
    """The ball was not the one that was asked for: no example moved, or the achieved radius is not the target."""


class OptimumWarning(TrainingWarning):
    """Training ended away from the optimum: a few steps of all clients together lower what they minimize."""


class UnitWarning(TrainingWarning):
    """A size, or inputs, are so large next to the data that they must be in another unit."""


class DataWarning(UserWarning):
    """Something about the data you brought makes training harder: columns on other scales, clients of one class."""


class LossWarning(TrainingWarning):
    """No loss was named, and that of a regression is used."""


class LabelCostWarning(TrainingWarning):
    """The label cost is so low that moving the targets alone multiplies the loss."""


class DivergenceWarning(TrainingWarning):
    """The loss has risen far above that of the first round; the message has since when, and which clients stand out."""


class SequentialWarning(TrainingWarning):
    """The model cannot be batched over clients, which are computed one after another: slower, with the same results."""


class VersionWarning(TrainingWarning):
    """A study goes on with another version of wafl or torch than it was begun with: bits may differ."""


class CheckpointWarning(TrainingWarning):
    """The last checkpoint is damaged: training goes on from the one before, and trains the rounds since then again."""


class PreconditionError(ValueError):
    """A bound does not apply to the given model and data; the message says which precondition fails."""


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
"""What things are called in other libraries."""


def nearest(word: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The known name that is most like a word, whatever its case; among equals, one that begins like it.

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
    """The end of a message about an unknown word: empty if no known name is like it.

    >>> did_you_mean("pdg", ["fgsm", "pgd"]), did_you_mean("x", ["pgd"])
    (": did you mean 'pgd'?", '')
    """
    near = nearest(word, known)
    return "" if near is None else f": did you mean {near!r}?"
