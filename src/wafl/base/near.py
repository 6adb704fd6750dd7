"""The name that was meant, for error messages."""

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

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
