"""Detect a model and clients in the wrong order, or other values in their place."""

from typing import Any

from torch import nn

from wafl.data.bring.foreign import is_dataset
from wafl.data.federation import Federation
from wafl.data.mistakes import what_is


def check_arguments(call: str, model: Any, clients: Any, *, trained: bool = True) -> None:
    """Raise TypeError for wrong arguments; ``trained`` tells whether a run is accepted as a model."""
    if isinstance(model, Federation) or isinstance(clients, nn.Module) or hasattr(clients, "history"):
        raise TypeError(f"model is {what_is(model)} and clients is {what_is(clients)}, which look swapped: call {call}")
    check_federation(call, clients)
    if hasattr(model, "intake"):
        model.intake.check_clients(clients.train.prepare)
    if isinstance(model, nn.Module) or (trained and hasattr(model, "history")):
        return
    if hasattr(model, "history"):
        raise TypeError(
            f"model is a Run: call {call} with model=run.model.train(), and init=run.params to go on from there"
        )
    if isinstance(model, type):
        raise TypeError(f"model is the class {model.__name__}: make one of it, model={model.__name__}(...)")
    raise TypeError(f"model is {what_is(model)}: pass a torch.nn.Module, such as wafl.models.mlr(clients)")


def check_federation(call: str, clients: Any) -> None:
    """Raise TypeError if clients are not a federation."""
    if isinstance(clients, Federation):
        return
    raise TypeError(f"clients is {what_is(clients)}: call {call} with {_remedy(clients)}")


def check_alike(seen: Federation, unseen: Federation) -> None:
    """Raise ValueError for clients that cannot be held-out clients of the training federation."""
    for what, name in {"shape": "input_shape", "unit": "unit", "number of classes": "num_classes"}.items():
        known, other = getattr(seen, name), getattr(unseen, name)
        if known != other:
            raise ValueError(
                f"the unseen clients have {what} {other}, the others {known}: hold out clients of the same federation, "
                "hold_out(0.2)"
            )


def check_apart(seen: Federation, unseen: Federation) -> None:
    """Raise ValueError if a held-out client has the examples of a client that trained."""
    trained = {digest: name for name, digest in client_digests(seen).items()}
    for name, digest in client_digests(unseen).items():
        if (other := trained.get(digest)) is not None:
            raise ValueError(
                f"{name} cannot stand for a new client, because it has the examples of {other} among the clients that "
                "trained: pass the two federations that hold_out(0.5) returns"
            )


def client_digests(clients: Federation) -> dict[str, str]:
    """Return a digest of each client's examples, by name."""
    examples = clients.examples
    return {name: examples.of_clients([index]).digest() for index, name in enumerate(clients.names)}


def _remedy(clients: Any) -> str:
    if hasattr(clients, "partition"):
        return "the clients that its partition(...) gives"
    if isinstance(getattr(clients, "clients", None), Federation):
        return "its .clients"
    if hasattr(type(clients), "columns"):
        return "wafl.Federation.from_frame(frame, client=..., target=...)"
    if is_dataset(clients) or (isinstance(clients, list) and clients and is_dataset(clients[0])):
        return "wafl.Federation.from_datasets([...]), one data set per client"
    return "a wafl.Federation, such as wafl.Federation.from_arrays([(x0, y0), (x1, y1)])"
