"""The section ``attack`` of an experiment file, made from the options that the listed attacks declare."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import Field, model_validator

from wafl.attacks import ATTACKS
from wafl.base.options import Choice, Option
from wafl.config.keys import Section
from wafl.config.known import describe_option, options_by_name
from wafl.config.tables import make_table, type_of
from wafl.shifts import MOVES

OPTIONS = options_by_name(
    {name: kind.settable() for name, kind in ATTACKS.items()}, first=[kind.settings.size for kind in ATTACKS.values()]
)
"""For each key of the section besides the kind: the attacks that have this option."""

if TYPE_CHECKING:
    AttackKind = str
    ShiftKind = str
else:
    AttackKind = Literal[("none", *ATTACKS)]
    ShiftKind = Literal[tuple(MOVES)]


def _default(owners: Mapping[str, Option], kind: object) -> Any:
    """Return the default of an option for this kind of attack, which may not have the option."""
    first = next(iter(owners.values()))
    return owners.get(kind, first).default if isinstance(kind, str) else first.default


def _differs(owners: Mapping[str, Option]) -> bool:
    """Return True if the attacks that have an option disagree about its default."""
    return len({option.default for option in owners.values()}) > 1


class _Kind(Section):
    """The part of the section that does not depend on the list of attacks."""

    kind: AttackKind = "pgd"
    """Which attack."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_its_kind(cls, values: Any) -> Any:
        """Fill in defaults that depend on the kind, so that a saved experiment has the values in force."""
        if not isinstance(values, dict):
            return values
        given = cast("dict[str, Any]", values)
        kind = given.get("kind", "pgd")
        missing = [name for name, owners in OPTIONS.items() if _differs(owners) and given.get(name) is None]
        return {**given, **{name: _default(OPTIONS[name], kind) for name in missing}}


def _key(owners: Mapping[str, Option]) -> Any:
    """Return the type, the default and the description of a key; a choice takes the values of every attack."""
    option = next(iter(owners.values()))
    choices = {value for each in owners.values() if isinstance(each.limits, Choice) for value in each.limits.values}
    kind = type_of(replace(option, limits=Choice(tuple(sorted(choices)))) if choices else option)
    default = None if _differs(owners) else option.default
    return (kind if default is not None else kind | None, Field(default, description=describe_option(owners)))


if TYPE_CHECKING:

    class Attack(_Kind):
        def __getattr__(self, name: str) -> Any: ...
else:
    Attack = make_table(
        "Attack",
        _Kind,
        "What happens to the test data of attacked clients; sizes are in the unit of the data.",
        {name: _key(owners) for name, owners in OPTIONS.items()},
    )
