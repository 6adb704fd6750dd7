"""Define options once: a dataclass field declares its type, its range and its purpose.

    gamma: Annotated[float | None, Positive(": a smaller gamma is a larger ball"), "The price of transport."] = None

The constructor checks the range (:func:`check_options`); experiment files, the command line, the schema and the
signatures of functions are derived from the same fields (:func:`options_of`, :mod:`wafl.base.signatures`).
"""

import inspect
import math
import re
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache, update_wrapper, wraps
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from wafl.base.bounds import check_bounds
from wafl.base.checks import check_seed
from wafl.base.errors import did_you_mean

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``.

    An open end is excluded, and so is infinity unless ``infinite``. ``hint`` ends the error message with a remedy.
    ``word`` may replace a number.
    """

    low: float = -math.inf
    high: float = math.inf
    hint: str = ""
    low_open: bool = False
    high_open: bool = False
    infinite: bool = False
    word: str | None = None

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError unless the value is a number in the range or the word."""
        if self.word is not None and value == self.word:
            return
        if not _is_number(value, Real):
            number = "a number" if self.word is None else f"{self.word!r}, or a number"
            raise ValueError(f"{name}={value!r} must be {number} and {self.words()}{self.hint}")
        if not self.holds(value):
            raise ValueError(f"{name}={value!r} must {self.words()}{self.hint}")

    def holds(self, value: float) -> bool:
        """Return whether the range contains the value."""
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return bool(above and below and (self.infinite or math.isfinite(value)))

    def words(self) -> str:
        """Describe the range for an error message, such as ``be positive and finite``."""
        if self.high < math.inf:
            left, right = "(" if self.low_open else "[", ")" if self.high_open else "]"
            return f"lie in {left}{self.low:g}, {self.high:g}{right}"
        if self.low == -math.inf:
            return "not be NaN" if self.infinite else "be finite"
        if self.low_open:
            return f"be {f'above {self.low:g}' if self.low else 'positive'}{'' if self.infinite else ' and finite'}"
        return f"be {'' if self.infinite else 'finite and '}at least {self.low:g}"


@dataclass(frozen=True)
class Count:
    """Whole numbers, at least ``low``."""

    low: int = 1
    hint: str = ""

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError unless the value is a whole number of at least ``low``."""
        whole = _is_number(value, Integral)
        if not whole or int(value) < self.low:
            kind = "" if whole else "a whole number, "
            raise ValueError(f"{name}={value!r} must be {kind}at least {self.low}{self.hint}")


@dataclass(frozen=True)
class Choice:
    """One of a few values."""

    values: tuple[Any, ...]
    hint: str = ""

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError unless the value is one of ``values``."""
        single = isinstance(value, str) or _is_number(value, Real)  # an array would be compared value by value
        if not single or value not in self.values:
            *head, last = (f"{each:g}" if isinstance(each, float) else str(each) for each in self.values)
            text = isinstance(value, str) and not any(isinstance(each, str) for each in self.values)
            hint = ": give a number, not text; infinity is math.inf" if text else self.hint
            raise ValueError(f"{name}={value!r} must be {', '.join(head)} or {last}{hint}")


@dataclass(frozen=True)
class Box:
    """Two numbers ``(low, high)``, or ``"data"``: see :mod:`wafl.base.bounds`."""

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError unless the value is a box, None or ``"data"``."""
        check_bounds(value)


@dataclass(frozen=True)
class Matrix:
    """The cost matrix of a ball: see :mod:`wafl.objectives.ball.cost_matrix`, which checks it."""

    def check(self, name: str, value: Any) -> None:
        """Accept any value; the ball checks its matrix."""


@dataclass(frozen=True)
class Seed:
    """Whole numbers from 0 to 2**32 - 1."""

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError unless the value is a valid seed."""
        check_seed(value, name)


@dataclass(frozen=True)
class Listed:
    """One or more values, each within these limits."""

    each: Count | Range

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError unless the value is a nonempty list of valid items."""
        if not isinstance(value, list | tuple) or not value:
            number = "whole number, such as (28, 28)" if isinstance(self.each, Count) else "number, such as (0.1, 0.3)"
            raise ValueError(f"{name}={value!r} must be a list of at least one {number}")
        for index, item in enumerate(value):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            self.each.check(f"{name}[{index}]", item)


@dataclass(frozen=True)
class Named:
    """Whole numbers by name, each within these limits."""

    each: Count

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError unless the value maps names to valid whole numbers."""
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):  # pyright: ignore[reportUnknownVariableType]
            raise ValueError(f"{name}={value!r} must have whole numbers by name, such as {{'north': 5000}}")
        for key, item in value.items():  # pyright: ignore[reportUnknownVariableType]
            self.each.check(f"{name}[{key!r}]", item)


@dataclass(frozen=True)
class EachRound:
    """A number in this range, or a function of the round that returns one."""

    range: Range

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError unless the value is a function or a number in the range."""
        if not callable(value):
            self.range.check(name, value)


@dataclass(frozen=True)
class Tunable:
    """The default search of an option by :func:`wafl.tune`: a choice takes each of its values, a number is scaled.

    Args:
        factor: the search ranges from ``value / factor`` to ``value * factor``, uniformly in the logarithm.
        gentle: the end of the range with the weakest effect. Among equally good trials, the gentlest is chosen.
        comparable: the equivalent number in another norm, as a function of the norm and the number of features.
    """

    factor: float = 10.0
    gentle: Literal["low", "high"] = "low"
    comparable: Callable[[float, int], float] | None = None


Limits = Range | Count | Choice | Box | Matrix | Seed | Listed | Named | EachRound


def Positive(hint: str = "", *, infinite: bool = False, word: str | None = None) -> Range:
    """Return the range of positive numbers."""
    return Range(0.0, hint=hint, low_open=True, infinite=infinite, word=word)


NotNegative = Range(0.0)
Norm = Choice((1, 2, math.inf))


@dataclass(frozen=True)
class Option:
    """One field: the type of its value (without None), its limits, its purpose, its default, and its search."""

    name: str
    kind: Any
    limits: Limits | None
    doc: str
    default: Any
    optional: bool
    tunable: Tunable | None = None

    @property
    def plain(self) -> bool:
        """Whether a file or a flag can contain its value, which needs a type or limits."""
        return self.kind is not Any or self.limits is not None

    def check(self, value: Any) -> None:
        """Raise ValueError if the value is outside the limits."""
        if self.limits is not None and not (value is None and self.optional):
            self.limits.check(self.name, value)


@cache
def options_of(kind: type) -> dict[str, Option]:
    """Return the options of a dataclass, by name, in the order of its fields."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: _option(field.name, hints[field.name], field.default) for field in fields(kind)}


def check_options(owner: Any) -> None:
    """Raise ValueError for values out of range, and convert numpy's numbers to Python's; for ``__post_init__``."""
    numpy: Any = sys.modules.get("numpy")  # where it is not loaded, no number is its own
    for name, option in options_of(type(owner)).items():
        value = getattr(owner, name)
        option.check(value)
        if numpy is not None and isinstance(value, numpy.generic):  # JSON and checkpoints hold plain numbers
            object.__setattr__(owner, name, value.item())


class Part:
    """A part of a method: a value with options, most often a dataclass, whose constructor checks their ranges."""

    slot: ClassVar[str]
    """The role of the part in a method."""

    def __post_init__(self) -> None:
        with suppress(NameError):  # your own part, whose annotations name what only its function knows
            check_options(self)

    def changed(self, **options: Any) -> Self:
        """Return a copy of this part with other options."""
        return replace(cast(Any, self), **options)


def part(options: Any, kind: type[T]) -> T:
    """Return a part of this kind, built from the matching fields of ``options``."""
    return kind(**{field.name: getattr(options, field.name) for field in fields(kind)})  # pyright: ignore[reportArgumentType]


def maker(kind: Callable[P, T]) -> Callable[P, T]:
    """Return a function that makes instances of this class, with the signature and the docstring of the class."""

    def make(*args: P.args, **kwargs: P.kwargs) -> T:
        return kind(*args, **kwargs)

    return update_wrapper(make, kind, updated=())


def documented(kind: type[T]) -> type[T]:
    """Return the dataclass with its options listed in its signature and in the ``Args`` of its docstring."""
    kind.__doc__ = with_arguments(kind.__doc__ or "", kind)
    made: Any = kind.__init__  # a signature of the class itself would be inherited
    made.__annotations__ = {name: each.annotation for name, each in plain_signature(kind).parameters.items()}
    return kind


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(kind: type[T]) -> type[T]:
    """Make a class a frozen dataclass that checks its options and lists them in its help."""
    checked: Any = kind
    if not hasattr(checked, "__post_init__"):
        checked.__post_init__ = check_options
    made: Any = dataclass(frozen=True)(kind)
    made.__init__ = naming(made.__init__, kind.__name__)
    return documented(made)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(kind: type[T]) -> type[T]:
    """Make a frozen dataclass that lists its fields in its help, for values made in every round and not checked."""
    return documented(dataclass(frozen=True)(kind))


def plain_signature(kind: Any) -> inspect.Signature:
    """Return the signature of a dataclass, with only the types of its options."""
    hints, signature = get_type_hints(kind), inspect.signature(kind)
    plain = [each.replace(annotation=hints[name]) for name, each in signature.parameters.items()]
    return signature.replace(parameters=plain, return_annotation=signature.empty)


def with_arguments(doc: str, kind: type) -> str:
    """Return a docstring whose ``Args`` end with a dataclass's options, followed by its returns and examples."""
    doc = inspect.cleandoc(doc)
    docs = [(name, options_of(kind)[name].doc) for name in inspect.signature(kind).parameters]
    lines = [f"    {name}: {doc[:1].lower()}{doc[1:]}" for name, doc in docs]
    head, end, tail = re.fullmatch(r"(.*?)(\n\nReturns:|\n\n>>> |$)(.*)", doc, re.DOTALL).groups()  # pyright: ignore[reportOptionalMemberAccess]
    return "\n".join([head if "\nArgs:\n" in head else f"{head}\n\nArgs:", *lines]) + end + tail


def unknown_option(owner: str, name: str, known: Collection[str]) -> str:
    """Return the message about an option that does not exist, with the closest name or all names."""
    hint = did_you_mean(name, known) or (f": it has: {', '.join(known)}" if known else "")
    return f"{owner} has no option {name!r}{hint}"


def check_names(owner: str, given: Collection[str], signature: inspect.Signature) -> None:
    """Raise TypeError if a keyword is not in the signature, with the closest option."""
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    if any(each.kind is each.KEYWORD_ONLY for each in parameters):
        parameters = [each for each in parameters if each.kind is each.KEYWORD_ONLY or each.default is not each.empty]
    for name in given:
        if name not in signature.parameters:
            raise TypeError(unknown_option(owner, name, [each.name for each in parameters]))


def naming(function: Callable[P, T], owner: str = "") -> Callable[P, T]:
    """Decorate a function so that the error about an unknown option names its owner and the closest option.

    >>> naming(lambda *, rounds=1: rounds, "train")(round=2)
    Traceback (most recent call last):
    TypeError: train has no option 'round': did you mean 'rounds'?
    """
    signature, owner = inspect.signature(function), owner or function.__name__
    if any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values()):
        return function

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        check_names(owner, kwargs, signature)
        return function(*args, **kwargs)

    return called


def _is_number(value: Any, kind: type) -> bool:
    """Return whether a value is a number of this kind; numpy's numbers count, True and False do not."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _option(name: str, hint: Any, default: Any) -> Option:
    extras: tuple[Any, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *rest = get_args(hint)
        extras = tuple(rest)
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kept = [member for member in members if member is not NoneType and get_origin(member) is not Callable]
    kept = [member for member in kept if get_origin(member) is not Literal] or kept  # a word stands for a number
    limits = next((extra for extra in extras if isinstance(extra, Limits)), None)
    doc = next((extra for extra in extras if isinstance(extra, str)), "")
    kind = kept[0] if len(kept) == 1 else hint
    tunable = next((extra for extra in extras if isinstance(extra, Tunable)), None)
    return Option(name, kind, limits, doc, None if default is MISSING else default, NoneType in members, tunable)
