"""Load the app on a node: the run config in force, and the functions that its experiment may name."""

import json
import os
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from wafl.base.errors import ConfigError
from wafl.config.code_folder import CodeFolder
from wafl.config.own_code import imports, top_module
from wafl.flower.node.work import read_experiment
from wafl.flower.wire.overrides import AppConfig
from wafl.flower.wire.values import WireError

INSTALLED = "WAFL_INSTALLED_CODE"
"""A variable in the node's environment. If it is set, experiments may also name functions of installed packages."""


@cache
def load_app(run_config: str, *, own_data: bool) -> dict[str, Any]:
    """Return the run config of a node's experiment, and load the modules that it names from the app's folder.

    Nothing is imported before everything is checked. With ``own_data``, the node has its own data: the experiment's
    data settings are ignored, and a Flower run may change only the app's open keys.
    """
    folder, config = _find()
    try:
        values = config.on_node(json.loads(run_config), own_data=own_data)
    except ConfigError as error:  # the server caused this error, so it may see the text
        raise WireError(str(error)) from error
    names, code = imports(read_experiment(json.dumps(values)), data=not own_data), CodeFolder(folder)
    outside = [name for name in names if top_module(name) not in code]
    if outside and not os.environ.get(INSTALLED):
        raise WireError(f"{outside[0]} is not in the app: a node runs only functions that the app contains")
    code.install(map(top_module, names))  # permanently, because a function may import when it is called
    return values


def _find() -> tuple[Path, AppConfig]:
    """Find the app's folder, which Flower puts first in Python's path, and return it with the app's run config."""
    for folder in sys.path:
        file = Path(folder) / "pyproject.toml"
        if file.is_file():
            project = tomllib.loads(file.read_text(encoding="utf-8"))
            if "app" in project.get("tool", {}).get("flwr", {}):
                return file.parent, AppConfig.of(project)
    raise ConfigError("the folder of the app is not among those that Python searches, so nothing of it can be checked")
