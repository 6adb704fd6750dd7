"""Read calibration clients one by one, and check that they are new to the model."""

import torch
from torch import nn

from wafl.data.arguments import check_alike, client_digests
from wafl.data.federation import Federation
from wafl.results.run import Run
from wafl.sets.answers import Client, Scorer


def read_clients(
    scorer: Scorer, clients: Federation, norm: float | None = None, most: int | None = None
) -> dict[str, Client]:
    """Return the scored examples of each client by name; raise ValueError that names a client without scores.

    Args:
        scorer: the model and the score.
        clients: the clients; all of their examples are read.
        norm: the ground norm of shifts, if there are any.
        most: the maximum number of examples to read of each client.
    """
    examples, dtype = clients.examples, scorer.problem.params.dtype
    scored: dict[str, Client] = {}
    for index, name in enumerate(clients.names):
        begin, end = examples.offsets[index : index + 2].tolist()
        rows = torch.arange(begin, end if most is None else min(end, begin + most))
        try:
            scored[name] = Client(scorer, examples.rows(rows, dtype), examples.y[rows], norm)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    if len(scored) < clients.num_clients:
        raise ValueError("two clients have the same name: pass names= when you make the federation")
    return scored


def check_held_out(calibration: Federation, training: Federation | None) -> None:
    """Raise ValueError if a calibration client has the name or the examples of a client that trained."""
    if training is None:
        return
    check_alike(training, calibration)
    trained = client_digests(training)
    for name, digest in client_digests(calibration).items():
        other = name if name in trained else next((each for each, known in trained.items() if known == digest), None)
        if other is not None:
            why = "trained, or has the name of a client that did" if name == other else f"has the examples of {other}"
            raise ValueError(
                f"{name} {why}: calibrate on clients that did not train, such as `hold_out(0.5)` returns, and give "
                "clients from elsewhere names of their own (names=)"
            )


def check_source(model: Run | nn.Module, clients: Federation) -> None:
    """Raise ValueError if a run and the clients have different units or numbers of classes."""
    if not isinstance(model, Run):
        return
    if (unit := model.settings.get("unit", clients.unit)) != clients.unit:
        raise ValueError(f"the run was trained on {unit}, and these clients have {clients.unit}: prepare them alike")
    known, classes = model.classes, clients.classes
    if known is None or classes is None or known == classes:
        return
    remedy = "pass classes=run.classes when you make the federation"
    for label, name in enumerate(classes):
        if name not in known:
            counts = clients.label_counts()[:, label].tolist()
            owner = next((each for each, count in zip(clients.names, counts, strict=True) if count), "the federation")
            raise ValueError(f"{owner}: label {name!r} is not one of the model's classes, {', '.join(known)}; {remedy}")
    raise ValueError(f"these clients number classes in another way than the run: {remedy}")
