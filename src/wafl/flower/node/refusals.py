"""Report why a node did not answer: it sends a code and a safe sentence, and logs the whole error locally.

An error's own text may quote a patient's name or a path, so only statements about the message itself are sent.
"""

from logging import ERROR

import torch
from flwr.app import ConfigRecord, RecordDict

from wafl.flower.wire.logs import log
from wafl.flower.wire.values import LONGEST, Reader, WireError, config_only

MESSAGE = "message"
LONGEST_NAME = 100
"""The maximum length of a node's name."""
SENTENCES = {
    "setup": "it cannot read the experiment or open its data",
    "unfit": "the model or the method does not fit its examples",
    "memory": "it ran out of memory",
    "error": "its work ended with an error",
}
"""The sentences for the server that replace an error's own text, by code."""


def refused(error: Exception, *, setup: bool = False) -> RecordDict:
    """Return a refusal with the facts about an error that the server may know, and log the whole error.

    With ``setup``, the node could not be opened.
    """
    code, why = _told(error, setup=setup)
    return refusal(code, why)


def why_refused(error: Exception) -> str:
    """Return the sentence that the server may know about an error, and log the whole error."""
    return _told(error)[1]


def _told(error: Exception, *, setup: bool = False) -> tuple[str, str]:
    """Return a code and a safe sentence."""
    if isinstance(error, WireError):  # about the message; the text contains nothing from the data
        log(ERROR, "refused what the server asked: %s", error)
        return MESSAGE, str(error)
    code = "unfit" if isinstance(error, ValueError) else "error"
    if setup:
        code = "setup"
    elif isinstance(error, MemoryError | torch.OutOfMemoryError):
        code = "memory"
    log(ERROR, "told the server only that %s (%s); the error:", SENTENCES[code], code, trace=True)
    return code, f"{SENTENCES[code]}; its own log says why"


def refusal(code: str, why: str) -> RecordDict:
    """Return the message of a refusal."""
    return config_only("refused", code=code, why=why[:LONGEST])


def signed(content: RecordDict, name: str) -> RecordDict:
    """Add the node's name to its reply if it is a refusal, because a refused greeting has no name."""
    if name and isinstance(refused := content.get("refused"), ConfigRecord):
        refused["node"] = name
    return content


def signature(content: RecordDict) -> str:
    """Return the name in a refusal, or an empty string."""
    refused = content.get("refused")
    name = refused.get("node") if isinstance(refused, ConfigRecord) else None
    return name[:LONGEST_NAME] if isinstance(name, str) else ""


def check_refusal(content: RecordDict) -> None:
    """Raise a node's refusal as an error with the node's sentence."""
    if "refused" in content:
        read = Reader(content, "refused")
        code, why = read.one("code", str)[:20], read.one("why", str)[:LONGEST]
        raise WireError(why if code == MESSAGE else f"{why} ({code})")
