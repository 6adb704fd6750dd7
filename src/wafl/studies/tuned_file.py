"""The experiment file with the values that tuning chose; the rest, comments included, stays as it was."""

from collections.abc import Sequence
from typing import Any

from wafl.config.experiment import Experiment
from wafl.config.keys import Section
from wafl.config.method_keys import PART_TABLES, MethodTable, OwnMethod
from wafl.config.read import apply_change
from wafl.tuning.result import Tuning


def tuned_toml(text: str, changes: Sequence[str], experiment: Experiment, tuning: Tuning) -> str:
    """The text of an experiment file with its ``key=value`` changes and the values that were chosen for each method."""
    import tomlkit

    content = tomlkit.parse(text)
    for change in changes:
        apply_change(content, change)
    _set(content, "name", f"{experiment.name}-tuned")
    tables: Any = content["methods"]
    for method, table in zip(experiment.methods, tables, strict=True):
        best = tuning.best.get(method.label)
        for name, value in ({} if best is None else best.setting).items():
            _set(_place(method, table, name), name, value)
    return f"# Tuned by {tuning.measure}.\n\n{tomlkit.dumps(content)}"


def part_options(method: MethodTable) -> dict[str, set[str]]:
    """The options that a file can set in the tables of a method's parts; those of your own parts are unknown."""
    parts = {slot: part for slot in PART_TABLES if isinstance(part := getattr(method, slot, None), Section)}
    return {slot: set(type(part).model_fields) - {"kind", "options"} for slot, part in parts.items()}


def _place(method: MethodTable, table: Any, name: str) -> Any:
    """The table that has an option: that of the method, of its function's arguments, or of one of its parts."""
    if name in type(method).model_fields:
        return table
    if isinstance(method, OwnMethod):
        return table["options"]
    return next(table[slot] for slot, names in part_options(method).items() if name in names)


def _set(table: Any, name: str, value: Any) -> None:
    from tomlkit.items import InlineTable

    before = table.get(name)
    table[name] = value
    if not isinstance(table, InlineTable):  # which cannot hold comments
        table[name].comment("tuned" if before is None else f"tuned, from {before}")
