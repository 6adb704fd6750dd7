"""An experiment as a Flower app: a folder that ``flwr run`` starts."""

import json
import re
import shutil
from pathlib import Path

from wafl.base.files import write_whole
from wafl.config.demo import CHOSEN, EPSILON, STEPS
from wafl.config.experiment import Experiment
from wafl.config.own_code import imports, top_module
from wafl.config.read import parse_experiment
from wafl.flower.ops.deployment import filled, make_empty
from wafl.flower.wire.overrides import OPEN
from wafl.flower.wire.run_config import to_run_config


def write_app(
    folder: Path, experiment: Experiment, source: Path | None = None, *, with_data: bool = False
) -> list[Path]:
    """Write the app, with the modules it names, into a new or empty folder; its data's only ``with_data``."""
    import tomlkit

    config = to_run_config(experiment)
    make_empty(folder)
    values = {
        "project": _project_name(experiment.name),
        "open": json.dumps(OPEN),
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
    """Return an experiment with FedAvg and WAFL and all clients in every round; nodes without data share digits."""
    content = {
        "name": "trial",
        "data": {"num_clients": 20, "labels_per_client": 3},
        "schedule": {"rounds": 20, "local_epochs": 2, "learning_rate": 1.0},
        "methods": [{"method": name, **CHOSEN[name]} for name in ("FedAvg", "WAFL")],
        "attack": {"epsilon": EPSILON, "steps": STEPS},
        "caps": {"clients_per_node": 1000, "client_share": 1.0},  # the nodes of a trial are yours
    }
    return parse_experiment(content, "the trial")


def _project_name(name: str) -> str:
    """The name as Flower takes it: letters, digits and hyphens, and a letter first."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return plain if plain[:1].isalpha() else f"study-{plain}".rstrip("-")
