"""Text from files and strangers, as a terminal may show it."""

import re

# Escape sequences begin with control characters, marks of direction reorder a line, and half a pair cannot be encoded.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """The text with a question mark for every character that a terminal would obey instead of showing it.

    >>> visible("client \\x1b[2J7")
    'client ?[2J7'
    """
    return _HIDDEN.sub("?", text)
