"""Define the ServerApp, which trains, certifies or finds weights on nodes, by its ``task`` (docs/flower.md)."""

import json
import warnings
from collections.abc import Mapping
from functools import partial
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from wafl.base.errors import ConfigError
from wafl.base.files import write_whole
from wafl.callbacks import Callback, Moment
from wafl.config.experiment import Experiment
from wafl.data.unpack import read_npz
from wafl.flower.node.examples import POINTS
from wafl.flower.server.bulletin import Bulletin
from wafl.flower.server.certify import certify
from wafl.flower.server.exchange import Post
from wafl.flower.server.find_clients import Finder
from wafl.flower.server.grid import GridClients
from wafl.flower.server.next_client import next_client
from wafl.flower.server.personalize import personalize
from wafl.flower.wire.logs import log, shown_safely
from wafl.flower.wire.run_config import OWN, from_run_config
from wafl.studies.attendance import absences, privacies
from wafl.studies.folder import StudyFolder, free_folder
from wafl.studies.roster import known_roster
from wafl.studies.study import Study, diverged
from wafl.train.lanes.lanes import free_bytes
from wafl.weights.transport.clouds import Sampling, read_target
from wafl.weights.transport.exchange import MOST_POINTS, mixture_from_cuts

server_app = ServerApp()
NODES = {"flower", "tolerance", "caps"}
"""The sections about nodes, which may change when a study is resumed."""
FREE = NODES | {"engine", "checkpoint_every", "checkpoint_seconds", "trackers", "methods", "tune"}
"""The sections that may differ between a study and the run config that resumes it. Methods are compared separately."""


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the function of the ``task`` in the run config."""
    values = {**OWN, **context.run_config}
    about_next = {"next-client": partial(next_client, kind="next"), "sets": partial(next_client, kind="sets")}
    tasks = {"train": train, "certify": certify, "mixture": mixture, "personalize": personalize, **about_next}
    try:
        if values["task"] not in tasks:
            raise ConfigError(f"run config: task={values['task']!r} must be one of {', '.join(tasks)}")
        tasks[values["task"]](Post(grid, from_run_config(values).flower.at_once), values)
    except Exception as error:
        shown_safely(error)  # Flower prints the error again, with the lines of code
        log(ERROR, "%s: %s", type(error).__name__, error)
        raise


def train(post: Post, values: Mapping[str, Any]) -> None:
    """Train and test every method of the experiment; ``folder`` is a study to resume, or a new one."""
    experiment, name = from_run_config(values), str(values["folder"])
    folder = Path(name) if name else free_folder(Path(str(values["output"])) / experiment.name)
    begun = folder.exists()
    if begun:
        experiment = _same(StudyFolder.existing(folder).experiment(), experiment, folder)
    finder = Finder(post, experiment, folder, known_roster(StudyFolder(folder)) if begun else None)
    study = Study.resume(folder, finder, trust=True) if begun else Study.create(experiment, folder, None, finder)
    finder.write_roster()
    log(INFO, "results go to %s", study.folder.path.resolve())
    bulletin = Bulletin(study.folder.path, post, finder.clients)
    with warnings.catch_warnings(), bulletin.kept():
        warnings.showwarning = lambda message, *_, **__: log(WARNING, "%s", str(message))
        results = study.run([_Narrator(finder.clients), bulletin])
    for reason in diverged(results):
        log(WARNING, "diverged: %s", reason)
    for text in absences(results):
        log(WARNING, "left out: %s", text)
    for text in privacies(results):
        log(INFO, "privacy: %s", text)
    for name, row in results["methods"].items():
        if "clean" not in row:
            continue
        tests = {f", {100 * float(share):g}% attacked": test["mean"] for share, test in row["attacked"].items()}
        attacked = "".join(f"{test} {mean:.2f}" for test, mean in tests.items())
        log(INFO, "%s: clean %.2f%s", name, row["clean"]["mean"], attacked)
    log(INFO, "%s; results are in %s", results["numbers"], study.folder.path.resolve())


def mixture(post: Post, values: Mapping[str, Any]) -> None:
    """Write the client weights whose mixture is nearest to ``x`` in the file ``target``, which every node receives."""
    experiment, aim = from_run_config(values), _target(values)
    clients = Finder(post, experiment, Path(str(values["target"])).parent)([])
    seed, roster = experiment.seeds[0], clients.roster
    drawn = read_target(aim, Sampling(MOST_POINTS, seed)).x
    nearest = mixture_from_cuts(lambda g: clients.cuts(drawn, g, POINTS, seed), drawn)
    output = Path(str(values["output"])) / f"{experiment.name}-mixture.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    about = {"squared": True, "kind": nearest.kind, "points": len(drawn), "value": nearest.value, "gap": nearest.gap}
    weights = dict(zip(roster.names, nearest.weights, strict=True))
    write_whole(output, json.dumps({**about, "unit": roster.unit, "weights": weights}).encode())
    log(INFO, "W_2 to the target is %.4g, with the weights in %s", nearest.radius, output.resolve())


def _target(values: Mapping[str, Any]) -> torch.Tensor:
    path = Path(str(values["target"]))
    try:
        content = read_npz(path, ("x",), free_bytes(torch.device("cpu")))
        return torch.from_numpy(content["x"]).double().flatten(1)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"run config: target={str(path)!r} must be an .npz file with x: {error}") from error


class _Narrator(Callback):
    """A callback that logs every round."""

    def __init__(self, clients: GridClients) -> None:
        self._clients = clients
        self._suspect: set[int] = set()

    def on_round(self, moment: Moment) -> None:
        record, names = moment.record, self._clients.roster.names
        radius = "" if record.achieved_radius is None else f", radius {record.achieved_radius:.4g}"
        left_out = "".join(f"; without {names[client]}: {why}" for client, why in record.excluded)
        shortened = "".join(f"; {names[client]} shortened to {share:.0%}" for client, share in record.shortened)
        limited = "".join(f"; {names[client]}: {what}" for client, what in record.limited)
        # When something is wrong with a client for the first time, its operator should see it.
        strange = {client for client, _ in (*record.excluded, *record.shortened, *record.limited)}
        level = WARNING if strange - self._suspect else INFO
        self._suspect |= strange
        about = f"{radius}{left_out}{shortened}{limited}"
        log(level, "%s, round %d: loss %.4f%s", moment.name, record.round, record.loss, about)


def _same(begun: Experiment, given: Experiment, folder: Path) -> Experiment:
    """Return the study's experiment with the run config's settings for nodes.

    Raise an error if the experiments differ.
    """
    one, other = (
        {
            **each.model_dump(exclude=FREE),
            **{f"methods.{method.label}": method.model_dump(exclude={"name"}) for method in each.methods},
        }
        for each in (begun, given)
    )
    for key in sorted({*one, *other}):
        if one.get(key) != other.get(key):
            raise ConfigError(
                f"{folder} was begun with {key} = {one.get(key)}, the run config has {other.get(key)}: give the same"
            )
    return begun.model_copy(update={name: getattr(given, name) for name in NODES})
