"""Limit a Flower run's changes to an app on a node: open keys, within ranges, checked before any import."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, cast

from flwr.common.config import flatten_dict

from wafl.base.errors import ConfigError
from wafl.base.toml import parsed_toml

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
"""The keys that only the server reads; a node uses the app's values. Unknown keys are for nodes too."""
OPEN = ("schedule.rounds", "seeds")
"""The keys for nodes that every Flower run may change."""
TRIAL = ("schedule.", "methods.")
"""The keys that a Flower run may set to any numbers, on nodes that use a part of the experiment's data set."""
TASKS = "flower.tasks"
"""The key by which an app declares its tasks; ``[questions]`` declare the tasks about the next client."""
FORM = 'open = {"schedule.learning_rate" = [1e-4, 0.5], "attack.kind" = ["none", "pgd"]}'
Range = Sequence[Any]
"""Two numbers, or a list of allowed strings."""
QUOTED = {"[": "list", "{": "table", '"': "text in quotes"}
"""The first characters of a string of TOML, and the kind of value that it contains."""


def read_value(key: str, value: Any) -> Any:
    """Return the intended value in a run config; lists, tables and some texts are strings of TOML."""
    if not isinstance(value, str) or not value.startswith(tuple(QUOTED)):
        return value
    try:
        return parsed_toml(f"value = {value}")["value"]
    except ValueError as error:
        raise ConfigError(f"run config: {key} = {value[:200]!r} is not a {QUOTED[value[0]]}: {error}") from error


@dataclass(frozen=True)
class AppConfig:
    """An app's run config, by dotted keys, and the ranges of its open keys for Flower runs."""

    values: Mapping[str, Any]
    open: Mapping[str, Range] = field(default_factory=dict[str, Range])

    def __post_init__(self) -> None:
        for key, values in self.open.items():
            if key not in self.values:
                raise ConfigError(
                    f"pyproject.toml: {key} in open of [tool.wafl] is not a key of this app: write {FORM}"
                )
            if not _is_range(values):
                raise ConfigError(
                    f"pyproject.toml: open.{key!r} = {values!r} in [tool.wafl] must be [low, high], or a list of texts"
                )

    @classmethod
    def of(cls, project: Mapping[str, Any]) -> Self:
        """Read an app's ``pyproject.toml``, which has the ranges of open keys in ``open`` of its table [tool.wafl]."""
        tools = project["tool"]
        ranges = tools.get("wafl", {}).get("open", {})
        if not isinstance(ranges, dict):
            raise ConfigError(
                f"pyproject.toml: open = {ranges!r} in [tool.wafl] must be a table with the range of each key: "
                f"write {FORM}, or {{}} for no key besides {' and '.join(OPEN)}"
            )
        return cls(flatten_dict(tools["flwr"]["app"].get("config", {})), cast("dict[str, Range]", ranges))

    def on_node(self, given: Mapping[str, Any], *, own_data: bool = True) -> dict[str, Any]:
        """Return the app's run config with the changes of a Flower run, or raise ConfigError if one is not allowed.

        Without ``own_data``, a node has a part of the experiment's data set, and all numbers may change.
        """
        values = dict(self.values)
        for key, value in given.items():
            if key not in values:
                raise ConfigError(f"run config: {key} is not a key of this app")
            if value == values[key]:
                continue
            if key == "task" and own_data:
                self._check_task(value)
            if key.partition(".")[0] not in ON_SERVER:
                self._check(key, value, own_data)
                values[key] = value
        return values

    def _check_task(self, task: Any) -> None:
        declared = [*read_value(TASKS, self.values.get(TASKS, '["train"]'))]
        sections = {key.partition(".")[0] for key in self.values}
        declared += ["next-client", "sets"] if "questions" in sections else []
        declared += ["personalize"] if "personalize" in sections else []
        if task not in declared:
            raise ConfigError(
                f"run config: task = {str(task)[:200]!r} must be one of {', '.join(declared)}, which the app declares: "
                f"write another into tasks of [flower], or [questions] or [personalize], into its experiment"
            )

    def _check(self, key: str, value: Any, own_data: bool) -> None:
        rule = self._rule(key, own_data)
        if rule is None:
            raise ConfigError(
                f"run config: {key} is not open: write it into the app, which opens {[*OPEN, *self.open]}, or write "
                f"its range into the app's pyproject.toml, under [tool.wafl]: {FORM}"
            )
        words, allows = rule
        if not own_data and value == "" and key.startswith("schedule."):  # not set
            return
        parsed = read_value(key, value)
        values = cast("list[Any]", parsed) if isinstance(parsed, list) else [parsed]
        if not values or not all(map(allows, values)):  # an empty list would clear the app's values
            raise ConfigError(f"run config: {key} = {str(value)[:200]!r}: nodes take {words}, and lists of these")

    def _rule(self, key: str, own_data: bool) -> tuple[str, Callable[[Any], bool]] | None:
        """Return a key's allowed values for a Flower run, in words and as a function; None if there are none."""
        limits = self.open.get(key)
        if limits is not None and isinstance(limits[0], str):
            return " or ".join(limits), lambda value: value in limits
        if limits is not None:
            return f"numbers in {list(limits)}", lambda value: _is_number(value) and limits[0] <= value <= limits[1]
        if key in OPEN:
            return "whole numbers", lambda value: type(value) is int
        if not own_data and key.startswith(TRIAL):
            return "numbers", lambda value: isinstance(value, int | float)
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_range(values: Any) -> bool:
    """Return whether these are two numbers, the smaller one first, or texts."""
    if not isinstance(values, list) or not values:
        return False
    several = cast("list[Any]", values)
    numbers = len(several) == 2 and all(map(_is_number, several)) and several[0] <= several[1]
    return numbers or all(isinstance(each, str) for each in several)
