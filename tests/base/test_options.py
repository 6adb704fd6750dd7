"""Options as dataclass fields: what each kind of limit accepts and refuses, and what is known about a field."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import pytest
import torch

from wafl.base.options import (
    Box,
    Choice,
    Count,
    EachRound,
    Limits,
    Listed,
    Norm,
    NotNegative,
    Option,
    Positive,
    Range,
    Seed,
    check_options,
    documented,
    options_of,
)
from wafl.base.signatures import taking

NAN, INF = math.nan, math.inf
SHARE = Range(0, 1, high_open=True)
NOT_NUMBERS = [None, True, False, np.True_, "1", "", [1], (1,), {}, 1j, object(), np.array([1.0]), torch.tensor(1.0)]


def accepts(limits: Limits, value: Any) -> bool:
    try:
        limits.check("option", value)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("limits", "inside", "outside"),
    [
        (Positive(), [0.5, 1, 1e300, np.float32(0.5), np.float64(2), np.int64(3)], [0, -0.0, -1, NAN, INF, -INF]),
        (Positive(infinite=True), [0.5, INF, np.float32(INF)], [0, -1, NAN, -INF]),
        (NotNegative, [0, -0.0, 0.0, 7, np.int64(0), np.float16(0.5)], [-1e-300, np.float32(-0.5), NAN, INF]),
        (SHARE, [0, 0.5, math.nextafter(1, 0), np.float32(0)], [1, 1.0, np.int64(1), -0.1, NAN, INF]),
        (Range(0, 1), [0, 1, np.float32(1)], [math.nextafter(1, 2), -0.1, NAN]),
        (Range(1.0, low_open=True), [math.nextafter(1, 2), 2], [1, 0, NAN, INF]),
        (Range(), [0, -1e300, 10**30], [NAN, INF, -INF]),
        (Range(infinite=True), [0, INF, -INF], [NAN]),
        (Count(), [1, 2, 10**30, np.int64(3), np.uint8(1)], [0, -1, np.int64(0), 1.0, np.float32(2.0), NAN, INF]),
        (Count(0), [0, 5, np.int32(0)], [-1, np.int64(-1)]),
        (Seed(), [0, 2**32 - 1, np.uint32(7)], [-1, 2**32, 0.0, "0", None]),
        (Listed(Count()), [[1], (28, 28), [np.int64(3)]], [[], (), [0], [1.5], 3, "33", {3}]),
        (Norm, [1, 2, 2.0, INF, np.int64(2), np.float32(INF)], [0, 3, 1.5, NAN, -INF, np.float64(3)]),
    ],
)
def test_a_limit_accepts_numbers_inside_and_at_a_closed_edge_and_no_others(
    limits: Limits, inside: list[Any], outside: list[Any]
) -> None:
    assert [value for value in inside if not accepts(limits, value)] == []
    assert [value for value in outside if accepts(limits, value)] == []


@pytest.mark.parametrize("limits", [Positive(), SHARE, Count(), Count(0), Norm, EachRound(Positive())], ids=repr)
def test_what_is_not_one_number_is_refused(limits: Limits) -> None:
    assert [value for value in NOT_NUMBERS if accepts(limits, value)] == []


def test_a_choice_of_words_accepts_these_words_alone() -> None:
    words = Choice(("adam", "yogi"))
    assert accepts(words, "adam")
    assert not any(accepts(words, value) for value in ("Adam", "", 0, None, ["adam"]))


@pytest.mark.parametrize("value", [(0, 1), [0.0, 1.0], np.array([0.0, 1.0]), (np.float32(0), np.int64(1)), (-INF, INF)])
def test_a_box_accepts_two_numbers_in_order(value: Any) -> None:
    Box().check("bounds", value)


@pytest.mark.parametrize("value", [(0,), (0, 1, 2), (1, 0), (1, 1), (0, NAN), ("a", "b"), "ab", 1.0, True])
def test_a_box_refuses_anything_but_two_numbers_in_order(value: Any) -> None:
    with pytest.raises(ValueError, match=r"bounds=.* must be"):
        Box().check("bounds", value)


def test_a_function_of_the_round_is_accepted_unseen_and_a_number_only_within_the_range() -> None:
    rate = EachRound(Positive())
    for value in (0.1, np.float32(0.1), lambda t: 0.1 / (1 + t), lambda t: -1.0):
        rate.check("rate", value)
    for value in (0, -0.1, NAN, INF):
        with pytest.raises(ValueError, match=f"rate={value} must be positive and finite"):
            rate.check("rate", value)


@pytest.mark.parametrize(
    ("limits", "value", "message"),
    [
        (Positive(": a smaller gamma is a larger ball"), 0, "gamma=0 must be positive and finite: a smaller gamma is"),
        (Positive(infinite=True), -1, "gamma=-1 must be positive$"),
        (Positive(), "x", "gamma='x' must be a number and be positive and finite$"),
        (Positive(), True, "gamma=True must be a number and be positive and finite$"),
        (NotNegative, -1, "gamma=-1 must be finite and at least 0$"),
        (SHARE, 1.0, r"gamma=1.0 must lie in \[0, 1\)$"),
        (SHARE, None, r"gamma=None must be a number and lie in \[0, 1\)$"),
        (Range(0, 1, "; 0 takes all steps", low_open=True), 0, r"gamma=0 must lie in \(0, 1\]; 0 takes all steps$"),
        (Range(1.0, low_open=True), 1, "gamma=1 must be above 1 and finite$"),
        (Range(), NAN, "gamma=nan must be finite$"),
        (Range(infinite=True), NAN, "gamma=nan must not be NaN$"),
        (Count(), 0, "gamma=0 must be at least 1$"),
        (Count(2, "; give two"), 1.5, "gamma=1.5 must be a whole number, at least 2; give two$"),
        (Count(), True, "gamma=True must be a whole number, at least 1$"),
        (Seed(), -1, r"gamma=-1 must lie in 0 .. 2\*\*32 - 1"),
        (Listed(Count()), (3, 0), r"gamma\[1\]=0 must be at least 1$"),
        (Listed(Count()), 3, "gamma=3 must be a list of at least one whole number"),
        (Norm, 3, "gamma=3 must be 1, 2 or inf$"),
        (Choice(("a", "b"), ": use one"), "c", "gamma='c' must be a or b: use one$"),
    ],
)
def test_an_error_has_the_value_the_range_and_the_remedy(limits: Limits, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        limits.check("gamma", value)


@dataclass(frozen=True)
class Base:
    gamma: Annotated[float | None, Positive(), "The price."] = None
    steps: Annotated[int, Count()] = 15
    strict: Annotated[bool, "Keep to the limit."] = False

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class Derived(Base):
    steps: Annotated[int, Count(0), "Fewer."] = 3
    rate: Annotated[float | Callable[[int], float], EachRound(Positive())] = 0.1
    name: str = ""


@dataclass
class Required:
    size: Annotated[int, Count()]


def test_options_of_a_derived_class_are_those_of_its_base_first_with_what_it_overrides() -> None:
    assert list(options_of(Derived)) == ["gamma", "steps", "strict", "rate", "name"]
    assert options_of(Derived)["gamma"] == options_of(Base)["gamma"]
    assert options_of(Derived)["steps"] == Option("steps", int, Count(0), "Fewer.", 3, optional=False)
    assert options_of(Base)["steps"] == Option("steps", int, Count(), "", 15, optional=False)


def test_an_option_knows_its_type_without_none_or_functions_its_limits_its_purpose_and_its_default() -> None:
    options = options_of(Derived)
    assert options["gamma"] == Option("gamma", float, Positive(), "The price.", None, optional=True)
    assert options["rate"] == Option("rate", float, EachRound(Positive()), "", 0.1, optional=False)
    assert options["strict"] == Option("strict", bool, None, "Keep to the limit.", False, optional=False)
    assert options["name"] == Option("name", str, None, "", "", optional=False)
    assert options_of(Required)["size"] == Option("size", int, Count(), "", None, optional=False)


def test_none_is_accepted_only_where_the_type_allows_it() -> None:
    assert Derived(gamma=None).gamma is None
    with pytest.raises(ValueError, match="steps=None must be a whole number, at least 0"):
        Derived(steps=None)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 0}, "gamma=0 must be positive"),
        ({"gamma": True}, "gamma=True must be a number"),
        ({"steps": -1}, "steps=-1 must be at least 0"),
        ({"rate": -1.0}, "rate=-1.0 must be positive"),
    ],
)
def test_the_constructor_and_replace_refuse_a_value_outside_its_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Derived(**options)
    with pytest.raises(ValueError, match=message):
        replace(Derived(), **options)


def test_numbers_of_numpy_are_stored_as_plain_ones() -> None:
    """Otherwise JSON refuses them when a run is saved, after all of its rounds."""
    given = Derived(np.float32(0.5), np.int64(3), np.True_, np.float64(0.25))  # pyright: ignore[reportArgumentType]
    assert vars(given) == {"gamma": 0.5, "steps": 3, "strict": True, "rate": 0.25, "name": ""}
    assert [type(value) for value in vars(given).values()] == [float, int, bool, float, str]
    assert json.loads(json.dumps(vars(given))) == vars(given)
    assert Derived(gamma=1).gamma == 1
    assert type(Derived(gamma=1).gamma) is int, "what is plain already stays as it is"


@documented
@dataclass(frozen=True, kw_only=True)
class Walk:
    """How far to go.

    >>> Walk(steps=3).steps
    3
    """

    steps: Annotated[int, Count(), "How many steps."]
    rate: Annotated[float | None, Positive(), "How fast."] = None

    def __post_init__(self) -> None:
        check_options(self)


@taking(Walk)
def walk(model: str, clients: str, method: str, options: Walk) -> tuple[str, str, str, Walk]:
    """Go there.

    Args:
        model: whose steps.
        clients: from where.
        method: by which road.

    Returns:
        What was given.
    """
    return model, clients, method, options


def test_a_dataclass_is_documented_by_its_options() -> None:
    assert str(inspect.signature(Walk)) == "(*, steps: int, rate: float | None = None)"
    lines = "Args:\n    steps: how many steps.\n    rate: how fast."
    assert inspect.getdoc(Walk) == f"How far to go.\n\n{lines}\n\n>>> Walk(steps=3).steps\n3"


def test_a_function_takes_the_options_of_a_dataclass_by_name_and_its_help_lists_them() -> None:
    assert walk("a", "b", "c", steps=3) == ("a", "b", "c", Walk(steps=3))
    assert walk(model="a", method="c", clients="b", rate=0.5, steps=1) == ("a", "b", "c", Walk(steps=1, rate=0.5))
    assert str(inspect.signature(walk)) == (
        f"(model: str, clients: str, method: str, *, steps: int, rate: float | None = None) -> "
        f"tuple[str, str, str, {__name__}.Walk]"
    )
    assert "method: by which road.\n    steps: how many steps.\n    rate: how fast.\n\nReturns:" in inspect.getdoc(walk)
    assert walk.__name__ == "walk"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"steps": 1, "rat": 0.5}, TypeError, r"^walk has no option 'rat': did you mean 'rate'\?$"),
        ({"steps": 1, "zzz": 0.5}, TypeError, "^walk has no option 'zzz': it has: steps, rate$"),
        ({}, TypeError, "^walk: missing a required argument: 'steps'$"),
        ({"steps": 0}, ValueError, "^steps=0 must be at least 1$"),
    ],
)
def test_a_function_refuses_options_that_it_has_not_and_values_out_of_range(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        walk("a", "b", "c", **options)
    with pytest.raises(TypeError, match=r"^walk: missing a required argument: 'method'$"):
        walk("a", "b", steps=1)
    with pytest.raises(TypeError, match=r"^walk: too many positional arguments$"):
        walk("a", "b", "c", 1, steps=1)
