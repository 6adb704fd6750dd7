"""Log to Flower's log; text from other machines is shown on one line, without control characters."""

from logging import getLogger
from typing import Any

from wafl.base.describe import visible

_flower = getLogger("flwr")  # the logger that Flower shows for a Flower run


def one_line(text: str) -> str:
    r"""Return the text on one line, with a question mark for every control character.

    >>> one_line("client\n\x1b[2J7")
    'client ?[2J7'
    """
    return visible(" ".join(text.split("\n")))


def log(level: int, text: str, *arguments: Any, trace: bool = False) -> None:
    """Log the text with its arguments filled in; with ``trace``, also the current error, line by line."""
    shown = [one_line(str(each)) if isinstance(each, str | Exception) else each for each in arguments]
    _flower.log(level, text, *shown, exc_info=trace)


def shown_safely(error: BaseException) -> None:
    """Change the texts of an error and of its causes so that they are safe to print."""
    cause: BaseException | None = error
    while cause is not None:
        cause.args = tuple(visible(each) if isinstance(each, str) else each for each in cause.args)
        cause = cause.__cause__ or cause.__context__
