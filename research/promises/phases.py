"""Two phases: promises about the next client are issued and signed; then the sealed clients are opened.

No issued bound depends on the sealed clients. The bounds are committed before the sealed clients are opened.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import nn

from research.jobs import Kept, Say
from research.promises.tasks import Task, apart, tasks_of
from research.registration import registered
from wafl import models
from wafl.base.files import write_whole
from wafl.data.federation import Federation
from wafl.methods import METHODS
from wafl.promises.attack import candidates, reached
from wafl.promises.bets import rank_of
from wafl.promises.checker import ball_of, chunks
from wafl.promises.known import known
from wafl.promises.promise import Promise, digest_of, to_bytes
from wafl.promises.quantities import quantity_of
from wafl.promises.read import read_file
from wafl.promises.sign import is_signed_by, read_key, sign
from wafl.results.run import Run
from wafl.studies.folder import provenance
from wafl.tasks.losses import output_loss
from wafl.theory.population.next_client import next_client
from wafl.train.fit import fit

NAME, ISSUED, OPENED, PUBLIC, KEY = "promises", "issued.json", "opened.json", "public.pem", "key.pem"


def issue_all(scale: str, output: Path, work: Path, say: Say = print) -> Path:
    """Issue every promise of the registration; ``work`` has the key, models, certificates and finished tasks."""
    (table, stamp), key, path = registered(NAME), work / KEY, output / ISSUED
    if not (key.exists() and (output / PUBLIC).exists()):
        make = f"openssl genpkey -algorithm ed25519 -out {key}; openssl pkey -in {key} -pubout -out {output / PUBLIC}"
        raise FileNotFoundError(f"there is no pair of keys to sign with: {make}")
    read_key(key, private=True)
    tasks, rows = tasks_of(table, scale), list[dict[str, Any]]()
    kept = Kept(work, stamp, say=say)
    absent = {task.name: missing for task in tasks if (missing := task.missing) is not None}
    for task in (task for task in tasks if task.name not in absent):
        if not kept.has(task.name):
            say(f"{task.name}: issuing")
        rows += kept.run(partial(_of_task, table, work), {task.name: task})[task.name]
    about = {name: value for name, value in provenance().items() if name in ("python", "packages", "machine")}
    content = {"registered": stamp, "scale": scale, **about, "absent": absent, "rows": rows}
    write_whole(path, to_bytes({**content, "signature": sign(to_bytes(content), key)}))
    say(f"{path}: commit it before you open the sealed clients")
    return path


def _of_task(table: Mapping[str, Any], work: Path, task: Task) -> list[dict[str, Any]]:
    """Return the rows of a task, and keep its models and certificates in the working folder."""
    return list(_rows(table, work, task))


def _rows(table: Mapping[str, Any], work: Path, task: Task) -> Iterator[dict[str, Any]]:
    clients = task.clients()
    classes = clients.num_classes or 0
    for number, (seen_ones, calibrating, _) in enumerate(task.folds(clients.num_clients)):
        seen, calibration = apart(clients, seen_ones, calibrating)
        for method in table["methods"]:
            run, label = trained(task, method, seen), f"{task.name}-{number}-{method}"
            torch.save(run.module.state_dict(), work / f"{label}.pt")
            for name, asked in table["statements"].items():
                if (quantity_of(asked["metric"]).needs_classes and not classes) or classes > asked.get(
                    "most_classes", classes
                ):
                    continue
                count, sampling, radius = len(calibrating), asked["own_sampling"], task.about["radius"] * asked["moved"]
                row: dict[str, Any] = {"task": task.name, "fold": number, "method": method, "statement": name}
                row |= {"own_sampling": sampling, "calibration": count, "model": digest_of(run.module), "value": None}
                if (chosen := confidence_for(table["confidences"], count, own_sampling=sampling)) is None:
                    yield row | {"why": f"{count} calibration clients are too few"}
                    continue
                options: dict[str, Any] = {"metric": asked["metric"], "radius": radius, "confidence": chosen[0]}
                promise = next_client(run, seen, calibration, **options).publish(own_sampling=sampling)
                promise.save(work / f"{label}-{name}.json", key=work / KEY)
                row |= {"confidence": chosen[0], "place": chosen[1], "value": promise.values["next"]}
                yield row | {"promise": sha256(to_bytes(promise.content)).hexdigest()}


def trained(task: Task, method: str, seen: Federation) -> Run:
    """Train a linear model: all clients take one step on all their examples per round."""
    made = METHODS[method](**({"radius": task.about["radius"]} if method == "WAFL" else {}))
    usual: dict[str, Any] = {"local_steps": 1, "batch_size": None, "check_optimum": False, "progress": False}
    options = {each: task.about[each] for each in ("rounds", "learning_rate")}
    return fit(models.mlr(seen), seen, made, loss=_loss(seen), **options, **usual)


def _loss(clients: Federation) -> str:
    return "squared_error" if clients.num_classes is None else "cross_entropy"


def confidence_for(confidences: Sequence[float], clients: int, *, own_sampling: bool) -> tuple[float, int] | None:
    """Return the first confidence that this number of clients allows, and the promised rank; None if none."""
    ranks = ((each, rank_of(None, clients, (1 - Fraction(str(each))) / (1 + own_sampling))) for each in confidences)
    return next(((confidence, rank) for confidence, rank in ranks if rank <= clients), None)


def open_all(scale: str, output: Path, work: Path, say: Say = print) -> Path:
    """Open the sealed clients, and write the results; raise an error if anything that was issued has changed."""
    (table, stamp), path = registered(NAME), output / ISSUED
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist: issue promises first (python -m research promises), and commit it"
        )
    issued = json.loads(data := path.read_bytes())
    content = to_bytes({key: value for key, value in issued.items() if key != "signature"})
    same = (issued["registered"], issued["scale"]) == (stamp, scale)
    if not same or not is_signed_by(content, issued["signature"], output / PUBLIC):
        raise ValueError(f"{path} was changed, or is of another registration or scale: restore it as it was committed")
    promises = [_promise(row, work) for row in issued["rows"]]  # before any client is opened
    rows: list[dict[str, Any]] = []
    for task in tasks_of(table, scale):
        of_task = [each for each in zip(issued["rows"], promises, strict=True) if each[0]["task"] == task.name]
        if of_task:
            say(f"{task.name}: opening")
            clients = task.clients()
            folds = [apart(clients, seen, sealed)[1] for seen, _, sealed in task.folds(clients.num_clients)]
            rows += [_opened(row, promise, folds[row["fold"]], work) for row, promise in of_task]
    opened = {"registered": stamp, "scale": scale, "issued": sha256(data).hexdigest(), "rows": rows}
    write_whole(output / OPENED, (json.dumps(opened) + "\n").encode())
    say(f"{output / OPENED}: what was promised, and what happened")
    return output / OPENED


def _promise(row: Mapping[str, Any], work: Path) -> Promise | None:
    """Return the certificate of a row, which must equal the issued one byte by byte; None if it has no value."""
    if row["value"] is None:
        return None
    path = work / f"{row['task']}-{row['fold']}-{row['method']}-{row['statement']}.json"
    promise, _ = read_file(path)
    read = sha256(to_bytes(promise.content)).hexdigest(), promise.parts.claim.model, promise.values["next"]
    if read != (row["promise"], row["model"], row["value"]):
        raise ValueError(f"{path} is not what was issued: restore it, or issue everything again")
    return promise


def _opened(row: Mapping[str, Any], promise: Promise | None, sealed: Federation, work: Path) -> dict[str, Any]:
    kept = {key: value for key, value in row.items() if key not in ("promise", "model", "value")}
    if promise is None:
        return {**kept, "promised": None}
    path, module = work / f"{row['task']}-{row['fold']}-{row['method']}.pt", models.mlr(sealed)
    module.load_state_dict(torch.load(path, weights_only=True))
    if digest_of(module, promise.parts.format) != row["model"]:
        raise ValueError(f"{path} is not the model that was promised about: restore it, or issue everything again")
    happened = {"classes": sealed.num_classes, "happened": happened_to(module, promise, sealed)}
    return {**kept, "promised": row["value"], **happened}


def happened_to(module: nn.Module, promise: Promise, clients: Federation) -> list[float]:
    """Return the promised quantity at each client's examples: if these may move, under the checker's attack."""
    claim, model = promise.parts.claim, known(module, output_loss(_loss(clients)))
    assert model is not None
    ball, radius, gamma = ball_of(claim), claim.rows[0].radius, promise.parts.witnesses[0].gamma
    examples, losses = clients.examples, list[float]()
    for client in range(clients.num_clients):
        parts = [candidates(model, ball, x, y, gamma, radius) for x, y in chunks(examples, client, model.at_once)]
        values, costs = (torch.cat(each) for each in zip(*parts, strict=True))
        losses.append(reached(values, costs, torch.full_like(values[:, 0], 1.0 / len(values)), ball.cost(radius)))
    return losses
