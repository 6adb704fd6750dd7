"""What our apps write to Flower's log: text from other machines is shown on one line, and never obeyed."""

from logging import getLogger
from typing import Any

from wafl.base.describe import visible

_flower = getLogger("flwr")  # what Flower shows of a Flower run


def one_line(text: str) -> str:
    r"""The text on one line, with a question mark for every character that a terminal would obey.

    >>> one_line("client\n\x1b[2J7")
    'client ?[2J7'
    """
    return visible(" ".join(text.split("\n")))


def log(level: int, text: str, *arguments: Any, trace: bool = False) -> None:
    """Log the text with its arguments filled in; with ``trace``, the error that is being handled too, line by line."""
    shown = [one_line(str(each)) if isinstance(each, str | Exception) else each for each in arguments]
    _flower.log(level, text, *shown, exc_info=trace)


def shown_safely(error: BaseException) -> None:
    """Change the texts of an error and of its causes so that whoever prints them shows them safely."""
    cause: BaseException | None = error
    while cause is not None:
        cause.args = tuple(visible(each) if isinstance(each, str) else each for each in cause.args)
        cause = cause.__cause__ or cause.__context__
