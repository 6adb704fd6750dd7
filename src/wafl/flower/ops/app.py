"""Turn an experiment into a Flower app, a folder for ``flwr run``, and run a study as one in a simulation."""

import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wafl.base.errors import TooFewRepliesError
from wafl.base.extras import require
from wafl.base.files import write_whole
from wafl.config.demo import CHOSEN, EPSILON, STEPS
from wafl.config.experiment import Experiment
from wafl.config.own_code import imports, top_module
from wafl.config.read import parse_experiment
from wafl.flower.node.app_code import INSTALLED
from wafl.flower.ops.deployment import filled, make_empty
from wafl.flower.ops.loopback import Loopback
from wafl.flower.wire.run_config import to_run_config
from wafl.studies.roster import read_roster, write_roster
from wafl.studies.study import Study
from wafl.train.checkpoint.signals import stopped_by_signals
from wafl.train.trust.admission import Tolerance


def write_app(
    folder: Path, experiment: Experiment, source: Path | None = None, *, with_data: bool = False
) -> list[Path]:
    """Write the app, with the modules that it names, to a new or empty folder.

    Include the data's module only ``with_data``.
    """
    import tomlkit

    config = to_run_config(experiment)
    make_empty(folder)
    values = {
        "project": _project_name(experiment.name),
        "config": tomlkit.dumps({"tool": {"flwr": {"app": {"config": config}}}}),
        "name": experiment.name,
        "methods": ", ".join(each.label for each in experiment.methods),
    }
    templates = {"pyproject.toml": "app.toml", "LICENSE": "LICENSE", "README.md": "README.md"}
    texts = {name: filled(template, values) for name, template in templates.items()}
    for name, text in texts.items():
        write_whole(folder / name, text.encode())
    modules = dict.fromkeys(map(top_module, imports(experiment, data=with_data)))
    code = [] if source is None else [source / f"{module}.py" for module in modules]
    copied = [Path(shutil.copy(file, folder / file.name)) for file in code if file.is_file()]
    return [*(folder / name for name in texts), *copied]


def trial_experiment() -> Experiment:
    """Return an experiment with FedAvg and WAFL and all clients in every round.

    Nodes without data share the digits data set.
    """
    content = {
        "name": "trial",
        "data": {"num_clients": 20, "labels_per_client": 3},
        "schedule": {"rounds": 20, "local_epochs": 2, "learning_rate": 1.0},
        "methods": [{"method": name, **CHOSEN[name]} for name in ("FedAvg", "WAFL")],
        "attack": {"epsilon": EPSILON, "steps": STEPS},
        "caps": {"clients_per_node": 1000, "client_share": 1.0},  # in a trial, all nodes are yours
    }
    return parse_experiment(content, "the trial")


def _project_name(name: str) -> str:
    """Convert a name to Flower's form: letters, digits and hyphens, with a letter first."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return plain if plain[:1].isalpha() else f"study-{plain}".rstrip("-")


PAUSE = 0.5
START = 300.0
"""The seconds within which another node must have started."""
AT_ONCE = 64
"""The number of nodes that have a message at the same time; with more, Flower's simulation slows down."""
Show = Callable[[str, int], None]
"""A function that receives the name of a method and the number of finished rounds of all its runs."""


def simulate(study: Study, show: Show = lambda name, done: None) -> dict[str, Any]:
    """Run the study in a Flower simulation and return its results; progress is kept and can be resumed."""
    require("ray", extra="flower", what="engine = 'flower-sim'")
    experiment, folder = study.plan.experiment, study.folder
    roster, unseen = study.plan.clients.roster, study.plan.unseen
    roster = replace(roster, unseen=() if unseen is None else unseen.names)
    nodes, clients = experiment.flower.nodes, roster.num_clients + len(roster.unseen)
    if nodes > clients:
        raise ValueError(f"flower.nodes={nodes} is larger than the number of clients, {clients}: lower it")
    workspace = folder.path.resolve() / "flower"
    app = workspace / "app"
    shutil.rmtree(app, ignore_errors=True)
    write_app(app, _for_everyone(experiment), folder.source(), with_data=True)
    if read_roster(folder.path) is None:  # so that the server knows which nodes to wait for, and which are missing
        write_roster(folder.path, roster)
    pending = [entry.name for entry in study.pending()]
    environment = {"WAFL_STATE": str(folder.checkpoint.resolve() / "nodes"), INSTALLED: "1"}
    config = {"folder": str(folder.path.resolve())}
    federation = {"num-supernodes": nodes, "client-resources-num-cpus": 1}
    with stopped_by_signals(), Loopback(workspace, environment=environment) as loopback:
        flower_run = loopback.submit(app, config, federation)
        while not flower_run.done():
            _report(folder.metrics, pending, show)
            time.sleep(PAUSE)
        status = flower_run.wait(60.0)
        _report(folder.metrics, pending, show)
        if status != "finished:completed":
            errors = [text for text in flower_run.log().splitlines() if "Error: " in text]
            why = errors[-1].partition("Error: ")[2] if errors else f"see {workspace}"
            raise TooFewRepliesError(f"the simulation ended as {status.removeprefix('finished:')}: {why}")
    return folder.read_results()


def _for_everyone(experiment: Experiment) -> Experiment:
    """Return the experiment for a server that waits for all nodes, and by default for all replies."""
    flower = experiment.flower
    changed = {"min_nodes": flower.nodes, "wait": max(flower.wait, START), "at_once": min(flower.at_once, AT_ONCE)}
    tolerance = experiment.tolerance or Tolerance(min_replies=1.0)
    return experiment.model_copy(update={"flower": flower.model_copy(update=changed), "tolerance": tolerance})


def _report(metrics: Path, methods: Sequence[str], show: Show) -> None:
    """Show each method's number of finished rounds, counted from the lines of the metrics."""
    lines = metrics.read_bytes() if metrics.exists() else b""
    for name in methods:
        if done := lines.count(f'{{"method": "{name}"'.encode()):
            show(name, done)
