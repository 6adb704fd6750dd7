"""Define the keys of a method in an experiment file, from the options that its parts declare."""

from collections.abc import Collection, Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from wafl.base.options import options_of
from wafl.config.keys import Import, NotNegative, Positive, Section, Swept, named, value_or_list
from wafl.config.tables import keys_of, make_table
from wafl.local import LOCAL_STEPS
from wafl.methods import METHODS
from wafl.parts import schedule
from wafl.servers import AGGREGATES, OPTIMIZERS
from wafl.weights import RULES

CENTER = "center"
OWN = "module:function"
"""The tag of a method or part that you wrote."""


if TYPE_CHECKING:

    class Schedule(Section):
        """The schedule of training."""

        def __getattr__(self, name: str) -> Any: ...
else:
    Schedule = make_table(
        "Schedule",
        Section,
        "How clients work together; a method may set any of these for itself, and a list of values is a sweep.",
        keys_of(schedule.Schedule, swept=options_of(schedule.Schedule).keys() - {"rounds"}, leave_out={"seed"}),
    )


class MethodTable(Schedule, use_attribute_docstrings=True):
    """A method, and its deviations from the schedule."""

    method: str
    """The method."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")] | None = None
    """The name of its results; by default the method's name in lower case."""

    @property
    def label(self) -> str:
        """The name of the method's results."""
        return self.name or label_of(self.method)


def label_of(method: str) -> str:
    """Return the default name of a method's results.

    >>> label_of("WAFL"), label_of("my_methods:Robust.make")
    ('wafl', 'make')
    """
    return method.rpartition(":")[2].rpartition(".")[2].lower()


_CENTERS = named(("by_examples", "uniform"), "'by_examples' or 'uniform', or a list of one weight per client")
Center = Annotated[
    Annotated[str, _CENTERS, Tag("value")] | Annotated[list[NotNegative], Tag("list")],
    Discriminator(value_or_list),
]
"""Fixed client weights, by name, or one weight per client."""


def _tag(value: Any, key: str, known: Collection[str]) -> Any:
    """Return the tag of the intended table, by the value of one key."""
    name = value.get(key) if isinstance(value, dict) else getattr(value, key, None)
    return OWN if isinstance(name, str) and name not in known and ":" in name else name


def _tables(name: str, kinds: Mapping[str, type], parts: Mapping[str, Any] | None = None) -> dict[str, type[Section]]:
    """Return one table per kind of a part, with the options of that kind; ``parts`` are options that are parts."""
    tables, parts = dict[str, type[Section]](), parts or {}
    for kind, part in kinds.items():
        inner = {
            slot: (table | None, Field(None, description=options_of(part)[slot].doc))
            for slot, table in parts.items()
            if slot in options_of(part)
        }
        fields: dict[str, Any] = {"kind": (Literal[kind], ...), **keys_of(part, leave_out=parts), **inner}
        tables[kind] = make_table(f"{name}_{kind}", Section, part.__doc__, fields)
    arguments = Field(default={}, description="Arguments of the function.")
    own_fields: dict[str, Any] = {"kind": (Import, ...), "options": (dict[str, Any], arguments)}
    about = f"Your own {name}: a function that returns it."
    return {**tables, OWN: make_table(f"own_{name}", Section, about, own_fields)}


def _chosen(tables: Mapping[str, type[Section]], key: str) -> Any:
    """Return the type of one of these tables, chosen by the value of one key."""
    tagged: list[Any] = [Annotated[table, Tag(tag)] for tag, table in tables.items()]
    return Annotated[reduce(or_, tagged), Discriminator(lambda value: _tag(value, key, tables))]


KINDS: dict[str, Mapping[str, Any]] = {
    "client_weights": RULES,
    "server": {**OPTIMIZERS, **AGGREGATES},
    "optimizer": OPTIMIZERS,
    "local": LOCAL_STEPS,
}
"""The parts of a method with separate tables, by slot and kind; the optimizer is a part of the server."""
_OPTIMIZER = _tables("optimizer", OPTIMIZERS)
_INSIDE = {"client_weights": {CENTER: Center}, "server": {"optimizer": _chosen(_OPTIMIZER, "kind")}}
PART_TABLES = {slot: _tables(slot, kinds, _INSIDE.get(slot)) for slot, kinds in KINDS.items()}
"""The tables of these parts, by slot and kind."""


_RULES = (
    f"{', '.join(map(repr, RULES))}, a table with one of these as its kind, a list of one weight per client, or {OWN!r}"
)
Rule = Annotated[
    Annotated[str, named(RULES, _RULES, or_import=True), Tag("value")]
    | Annotated[list[NotNegative], Tag("list")]
    | Annotated[_chosen(PART_TABLES["client_weights"], "kind"), Tag("table")],
    Discriminator(lambda value: "table" if isinstance(value, dict | Section) else value_or_list(value)),
]
"""A rule for the client weights by name, its table, one weight per client, or your own function that returns a rule."""

PARTS: dict[str, tuple[Any, str]] = {
    "client_weights": (
        Rule,
        "How much each client counts: a rule by name or as a table, a list of weights, or 'module:function'.",
    ),
    CENTER: (Center, "The client weights before losses count: a rule by name, or a list of weights."),
    "server": (_chosen(PART_TABLES["server"], "kind"), "What becomes of the clients' models; by default their mean."),
    "local": (_chosen(PART_TABLES["local"], "kind"), "What clients do with a gradient; by default they descend."),
}
"""The type and the description of each part that a file may choose."""


class OwnMethod(MethodTable):
    """Your own method: a function that returns a wafl.Method."""

    method: Import
    """``module:function``."""
    options: dict[str, Any] = Field(default={})
    """Arguments of the function; a list is a sweep."""


def _method(name: str) -> type[MethodTable]:
    kind: Any = METHODS[name].options
    parts = {
        slot: (part | None, Field(None, description=doc))
        for slot, (part, doc) in PARTS.items()
        if slot in options_of(kind)
    }
    keys = keys_of(kind, swept=options_of(kind), leave_out=PARTS)
    if "client_weights" in parts:
        keys["weights_step"] = (Swept[Positive] | None, Field(None, description="The step of learned client weights."))
    fields: dict[str, Any] = {"method": (Literal[name], ...), **keys, **parts}
    return make_table(name, MethodTable, kind.__doc__, fields)


METHOD_TABLES: dict[str, type[MethodTable]] = {**{name: _method(name) for name in METHODS}, OWN: OwnMethod}
"""The table of every method by its name, and the table of your own methods."""

if TYPE_CHECKING:
    AnyMethod = MethodTable
else:
    AnyMethod = _chosen(METHOD_TABLES, "method")
