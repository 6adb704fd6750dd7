"""What a Flower run may change of an app on a node: open keys, to numbers, judged as read, before code is imported."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Self, get_args

from flwr.common.config import flatten_dict

from wafl.base.errors import ConfigError

ON_SERVER = frozenset(
    {"task", "folder", "output", "radii", "norm", "metric", "confidence", "target", "invited", "name", "evaluation"}
    | {
        "tune",
        "checkpoint_every",
        "checkpoint_seconds",
        "early_stopping",
        "tolerance",
        "privacy",
        "caps",
        "trackers",
        "flower",
    }
)
"""What the server alone reads; on a node, it is as the app has it. Keys that are not ours are for nodes, too."""
OPEN = ("schedule.*", "methods.*")
"""What a Flower run may change by default: ``part.*`` takes numbers, and a whole key also names of our lists."""
QUOTED = {"[": "list", "{": "table", '"': "text in quotes"}
"""How a string that holds TOML begins, and what it holds."""


def read_value(key: str, value: Any) -> Any:
    """A value of a run config as it is meant: lists, tables and some texts are strings of TOML."""
    if not isinstance(value, str) or not value.startswith(tuple(QUOTED)):
        return value
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"run config: {key} = {value[:200]!r} is not a {QUOTED[value[0]]}: {error}") from error


@dataclass(frozen=True)
class AppConfig:
    """The run config that an app itself has, by dotted keys, and which of these a Flower run may change."""

    values: Mapping[str, Any]
    open: tuple[str, ...] = OPEN

    @classmethod
    def of(cls, project: Mapping[str, Any]) -> Self:
        """That of an app's ``pyproject.toml``, which names open keys as ``open`` in its table ``[tool.wafl]``."""
        tools = project["tool"]
        named = tools.get("wafl", {}).get("open", list(OPEN))
        if not isinstance(named, list) or not all(isinstance(key, str) for key in named):
            raise ConfigError(f"pyproject.toml: open = {named!r} in [tool.wafl] must be a list of keys")
        return cls(flatten_dict(tools["flwr"]["app"].get("config", {})), tuple(named))

    def on_node(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The app's run config with what a Flower run changes of it; a ConfigError if it may not, and nodes read it."""
        values = dict(self.values)
        for key, value in given.items():
            if key not in values:
                raise ConfigError(f"run config: {key} is not a key of this app")
            if value != values[key] and key.partition(".")[0] not in ON_SERVER:
                self._check(key, value)
                values[key] = value
        return values

    def _check(self, key: str, value: Any) -> None:
        named = key in self.open
        if not named and not any(key.startswith(name[:-1]) for name in self.open if name.endswith(".*")):
            raise ConfigError(f"run config: {key} is not open: write it into the app, which opens {list(self.open)}")
        if value == "" and key.startswith("schedule."):  # not set
            return
        parsed = read_value(key, value)
        for each in parsed if isinstance(parsed, list) else [parsed]:
            if not isinstance(each, int | float) and not (named and isinstance(each, str) and each in our_names()):
                takes = "numbers and names of our lists" if named else "numbers"
                raise ConfigError(f"run config: {key} = {str(value)[:200]!r}: nodes take {takes}, and lists of them")


@cache
def our_names() -> frozenset[str]:
    """The names that an experiment may choose from: methods and their parts, models and attacks; no code."""
    from wafl.config.experiment import MODELS, Attack
    from wafl.config.method_keys import METHOD_TABLES, OWN, PART_TABLES

    parts = [name for tables in PART_TABLES.values() for name in tables]
    return frozenset({*METHOD_TABLES, *parts, *MODELS, *get_args(Attack.model_fields["kind"].annotation)} - {OWN})
