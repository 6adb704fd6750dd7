"""Check merged results: anyone from the receipts, and a site from its data."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from torch import nn

from wafl.data.federation import Federation
from wafl.promises.checker import Line
from wafl.promises.next_client import CheckedMerge, check
from wafl.promises.receipts import Merged, read
from wafl.receipts.merging import receipt_files
from wafl.receipts.replying import numbers
from wafl.receipts.requesting import Place
from wafl.results.run import Run
from wafl.tasks.task import Loss


def verify(
    file: Place,
    *,
    receipts: Iterable[Place] | Place | None = None,
    key: Place | None = None,
    model: Run | nn.Module | None = None,
    data: Federation | None = None,
    client: str | None = None,
    loss: Loss | None = None,
) -> CheckedMerge:
    """Check the signatures, ranks and sums of a file of :func:`merge`, with independent code.

    Args:
        file: the file.
        receipts: the files of the receipts, or a folder of them; without them, replies are only attested.
        key: the file of the owner's public key, which must have signed the request.
        model: the model, with `data`.
        data: one client: a site's examples, to recompute its numbers.
        client: the name of this site in the request; by default the name of the client.
        loss: the loss; by default the run's loss, or cross-entropy.
    """
    merged = read(Merged, Path(file))
    checked = check(merged, None if receipts is None else receipt_files(receipts), key)
    if data is None:
        return checked
    if model is None:
        raise ValueError("a site's numbers follow from its data and the model: give the model too")
    name = data.names[0] if client is None else client
    if name not in checked.clients:
        raise ValueError(f"{name!r} was not invited: give the name of the site, one of {', '.join(checked.clients)}")
    line = checked.clients[name]
    if name in merged.missing or line.status == "wrong":
        return checked
    again = numbers(merged.request, model, data, name, loss=loss, remember=False)
    if again != merged.replies.get(name):
        line = Line(name, "wrong", "its numbers do not follow from these data and this model")
    else:
        line = replace(line, why=f"{line.why}; its numbers follow from these data and this model")
    return replace(checked, clients={**checked.clients, name: line})
