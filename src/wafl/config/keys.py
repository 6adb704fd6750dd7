"""Define the types of an experiment file's values, with their ranges."""

import math
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

T = TypeVar("T")


def _of_usual_size(value: float) -> float:
    if value != 0 and not 1e-30 <= abs(value) <= 1e30:  # float32 could not hold its square
        raise ValueError("must lie between 1e-30 and 1e30")
    return value


OfUsualSize = AfterValidator(_of_usual_size)
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), OfUsualSize]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), OfUsualSize]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


def _different(seeds: list[int]) -> list[int]:
    if len(set(seeds)) != len(seeds):
        raise ValueError("must differ")
    return seeds


Seeds = Annotated[list[Seed], Field(min_length=1), AfterValidator(_different)]
IMPORT = r"^[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*(\.\w+)*$"
Import = Annotated[str, Field(pattern=IMPORT)]
"""``module:function``, found next to the file or among the installed packages."""


def named(known: Collection[str], hint: str, *, or_import: bool = False) -> BeforeValidator:
    """Return a check that a value is one of these names or, with ``or_import``, ``module:function``."""

    def check(value: Any) -> Any:
        if not isinstance(value, str) or not (value in known or (or_import and re.fullmatch(IMPORT, value))):
            raise ValueError(f"must be {hint}")
        return value

    return BeforeValidator(check)


def one_of(*values: float) -> Any:
    """Return the type of one of a few numbers; JSON has no infinity, so it is the word ``inf``."""
    *head, last = (f"{value:g}" for value in values)

    def check(value: Any) -> Any:
        value = math.inf if value == "inf" else value
        if isinstance(value, bool) or value not in values:  # Python takes True for 1
            raise ValueError(f"must be {', '.join(head)} or {last}")
        return float(value) if math.inf in values else value

    infinite = {"anyOf": [{"type": "number"}, {"const": "inf"}]}
    schema = infinite if math.inf in values else {"enum": list(values)}
    return Annotated[float | int, BeforeValidator(check), WithJsonSchema(schema)]


if TYPE_CHECKING:
    Norm = float
else:
    Norm = one_of(1, 2, math.inf)


def number_or(word: str, number: Any) -> Any:
    """Return one type for a number or a word; for a union, pydantic would report an error for each member."""
    adapter: TypeAdapter[Any] = TypeAdapter(number)

    def check(value: Any) -> Any:
        if isinstance(value, str):
            if value != word:
                raise ValueError(f"must be a number or {word!r}")
            return value
        try:
            return adapter.validate_python(value, strict=True)
        except ValidationError as error:
            raise PydanticCustomError("number", "{what}", {"what": error.errors()[0]["msg"]}) from error

    schema = {"anyOf": [adapter.json_schema(), {"const": word}]}
    return Annotated[Any, BeforeValidator(check), WithJsonSchema(schema)]


def value_or_list(value: Any) -> str:
    """Return the tag of a value that may also be a list."""
    return "list" if isinstance(value, list) else "value"


_WORDS = named(("data", "none"), "a list of two numbers, 'data' or 'none'")
Box = Annotated[
    Annotated[Literal["data", "none"], _WORDS, Tag("value")]
    | Annotated[Annotated[list[float], Field(min_length=2, max_length=2)], Tag("list")],
    Discriminator(value_or_list),
]
"""The limits of moved examples: a box, ``data`` (the declared bounds) or ``none`` (no limits)."""


def _cost_matrix(value: Any) -> Any:
    """Return the value, checked as a whole; for a union, pydantic would report an error for each member."""
    rows: list[Any] = value if isinstance(value, list) else []
    numbers = [each for row in rows for each in (row if isinstance(row, list) else [row])]
    plain = all(isinstance(each, float | int) and not isinstance(each, bool) for each in numbers)
    if value != "clients" and not (numbers and plain):
        raise ValueError("must be 'clients', a list of one number per feature, or a list of such lists (a matrix)")
    return value


_ROW = {"type": "array", "items": {"type": "number"}}
CostMatrix = Annotated[
    Any,
    BeforeValidator(_cost_matrix),
    WithJsonSchema({"anyOf": [{"const": "clients"}, _ROW, {"type": "array", "items": _ROW}]}),
]
"""The cost matrix of moves: from the clients' differences, one number per feature, or a matrix."""

Swept = Annotated[
    Annotated[T, Tag("value")] | Annotated[Annotated[list[T], Field(min_length=1)], Tag("list")],
    Discriminator(value_or_list),
]
"""A value, or a list of values: one run each."""


class Section(BaseModel):
    """A table without unknown keys and without values of another type."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        use_attribute_docstrings=True,
        ser_json_inf_nan="constants",
        defer_build=True,
    )
