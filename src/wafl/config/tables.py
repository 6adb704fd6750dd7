"""Create tables of an experiment file from the options that a dataclass declares."""

import inspect
import math
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, GetCoreSchemaHandler, create_model
from pydantic_core import CoreSchema, core_schema

from wafl.base.options import (
    Box,
    Choice,
    Count,
    EachRound,
    Listed,
    Matrix,
    Named,
    Option,
    Range,
    Seed,
    options_of,
)
from wafl.config import keys
from wafl.config.keys import OfUsualSize, Section, Swept

T = TypeVar("T", bound=Section)


def make_table(name: str, base: type[T], doc: str | None, fields: Mapping[str, Any]) -> type[T]:
    """Create a table whose fields have descriptions, so that pydantic does not search source code for docstrings."""
    return create_model(name, __base__=base, __doc__=doc, __cls_kwargs__={"use_attribute_docstrings": False}, **fields)


def keys_of(kind: type, *, swept: Collection[str] = (), leave_out: Collection[str] = ()) -> dict[str, Any]:
    """Return one optional key per option of a dataclass; the ``swept`` ones may have a list of values."""
    return {
        name: (type_of(option, swept=name in swept) | None, Field(None, description=option.doc or None))
        for name, option in options_of(kind).items()
        if name not in leave_out and option.plain
    }


class FromTable:
    """The mark of a dataclass that is a table of options in a file: ``Annotated[Faults, FromTable(Faults)]``."""

    def __init__(self, kind: type) -> None:
        fields: dict[str, Any] = {
            name: (
                type_of(option) | None if option.optional else type_of(option),
                Field(option.default, description=option.doc),
            )
            for name, option in options_of(kind).items()
        }
        self._kind = kind
        self._table = make_table(kind.__name__, Section, inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0], fields)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        table = handler.generate_schema(self._table)
        written = core_schema.plain_serializer_function_ser_schema(self._write, return_schema=table)
        return core_schema.no_info_after_validator_function(self._read, table, serialization=written)

    def _read(self, table: Section) -> Any:
        return self._kind(**dict(table))

    def _write(self, value: Any) -> Section:
        values = {name: getattr(value, name) for name in options_of(self._kind)}
        return self._table(**{name: list(each) if isinstance(each, tuple) else each for name, each in values.items()})  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def type_of(option: Option, *, swept: bool = False) -> Any:
    """Return the type of the key for an option."""
    limits = option.limits.range if isinstance(option.limits, EachRound) else option.limits
    if limits is None:
        return option.kind
    if isinstance(limits, Box):
        return keys.Box
    if isinstance(limits, Matrix):
        return keys.CostMatrix
    if isinstance(limits, Listed):
        return Annotated[list[_value(limits.each)], Field(min_length=1)]
    if isinstance(limits, Named):
        return dict[str, _value(limits.each)]
    value = _value(limits)
    return Swept[value] if swept else value


def _value(limits: Range | Count | Choice | Seed) -> Any:
    if isinstance(limits, Seed):
        return keys.Seed
    if isinstance(limits, Choice):
        words = all(isinstance(value, str) for value in limits.values)
        return Literal[limits.values] if words else keys.one_of(*limits.values)
    if isinstance(limits, Count):
        return Annotated[int, Field(ge=limits.low, le=10**9)]
    low: dict[str, Any] = {"gt" if limits.low_open else "ge": limits.low} if limits.low > -math.inf else {}
    high: dict[str, Any] = {"lt" if limits.high_open else "le": limits.high} if limits.high < math.inf else {}
    ranged = Annotated[float, Field(**low, **high, allow_inf_nan=limits.infinite)]
    number = ranged if limits.infinite or high else Annotated[ranged, OfUsualSize]
    return number if limits.word is None else keys.number_or(limits.word, number)
