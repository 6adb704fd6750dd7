"""Convert an experiment to a Flower run config, with plain values under dotted keys, and back."""

from collections.abc import Mapping
from typing import Any

from wafl.base.errors import ConfigError
from wafl.config.experiment import Experiment, Schedule
from wafl.config.method_keys import MethodTable
from wafl.config.read import parse_experiment
from wafl.flower.wire.overrides import QUOTED, read_value
from wafl.train.trust.admission import Tolerance

OWN = {
    "task": "train",
    "folder": "",
    "output": "runs",
    "radii": "[0.1, 0.3, 1.0]",
    "norm": 2.0,
    "metric": "loss",
    "confidence": 0.0,
    "target": "",
    "invited": "[]",
}
"""The settings of WAFL's ServerApp in addition to the experiment; see :mod:`wafl.flower.app.server`."""


def to_run_config(experiment: Experiment) -> dict[str, Any]:
    """Return the experiment as tables of plain values: one table per method, with lists as strings of TOML.

    Tables among the options of your own methods and parts are strings of TOML, too, and so is text that looks like
    TOML. Omitted settings of the schedule are empty strings, so that they can be set when a Flower run is started; for
    the same reason, the tolerance and the caps are always written. Nodes of a simulation are trusted.
    """
    remote = experiment.engine != "flower-sim"
    tolerance = (experiment.tolerance or Tolerance()).settled(remote=remote)
    caps = experiment.caps.settled(remote=remote)
    if remote and experiment.flower.names_by_key:
        caps.check_keys()
    experiment = experiment.model_copy(update={"tolerance": tolerance, "caps": caps})
    content = experiment.model_dump(exclude_none=True, exclude={"engine"})
    methods: dict[str, Any] = {}
    for table, method in zip(experiment.methods, content.pop("methods"), strict=True):
        name = table.label
        key = name.replace(".", "-")  # a dot would begin another table
        while key in methods:
            key += "-"
        methods[key] = method
    if not remote:  # simulated nodes have new keys each time
        content["flower"]["names_by_key"] = False
    content["schedule"] = {**dict.fromkeys(Schedule.model_fields, ""), **content["schedule"]}
    plain = _plain(content)
    # In one piece: the names of clients may have dots.
    plain["caps"] |= {name: _inline(value) for name, value in content["caps"].items() if isinstance(value, Mapping)}
    return {**OWN, **plain, "methods": {name: _plain(method) for name, method in methods.items()}}


def from_run_config(values: Mapping[str, Any]) -> Experiment:
    """Return the experiment in dotted keys, with its clients on nodes."""
    content: dict[str, Any] = {}
    for key, value in values.items():
        if key in OWN or (value == "" and key.startswith("schedule.")):
            continue
        *path, last = key.split(".")
        target = content
        for name in path:
            target = target.setdefault(name, {})
            if not isinstance(target, dict):
                raise ConfigError(f"run config: {key} is set, but a key that it begins with is a value and not a table")
        target[last] = read_value(key, value)
    tables: Any = content.pop("methods", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigError("run config: methods must be tables, such as methods.wafl.method = 'WAFL'")
    # A map loses its order in a message.
    methods = [_named(name, table) for name, table in sorted(tables.items())]
    return parse_experiment({"engine": "flower", **content, "methods": methods}, "run config")


def _named(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    plain = name == MethodTable.model_construct(method=str(table.get("method", ""))).label
    return dict(table) if plain or "name" in table else {"name": name, **table}


def _plain(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _options(value) if key == "options" else _write(value) for key, value in content.items()}


def _options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of any kind as plain values; a nested table stays in one piece, since its keys may have dots."""
    for name in values:
        if not name.isidentifier():
            raise ConfigError(f"options: {name!r} is not an argument's name: use letters, '_' and, not first, digits")
    return {name: _inline(value) if isinstance(value, Mapping) else _write(value) for name, value in values.items()}


def _write(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _plain(value)
    if isinstance(value, list) or (isinstance(value, str) and value.startswith(tuple(QUOTED))):
        return _inline(value)
    return value


def _inline(value: Any) -> str:
    """Return a value as TOML in one line."""
    import tomlkit

    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_inline(str(key))} = {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return tomlkit.item(value).as_string()
