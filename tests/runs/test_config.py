"""An experiment file: what it may say, how its mistakes are reported, and that it trains what it says."""

from __future__ import annotations

import copy
import functools
import json
import math
import re
import sys
import tomllib
from collections.abc import Generator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import wafl
from wafl.algorithms.admission import Tolerance
from wafl.algorithms.caps import Caps
from wafl.algorithms.local import LOCAL_STEPS
from wafl.algorithms.servers import AGGREGATES, OPTIMIZERS
from wafl.cli.main import app
from wafl.core.errors import ConfigError
from wafl.core.options import Choice, Count, EachRound, Listed, Option, Range, Seed, options_of
from wafl.engine.callbacks import Moment
from wafl.engine.faults import Faults
from wafl.engine.private import Privacy
from wafl.runs import config
from wafl.runs.method_keys import METHOD_TABLES, PART_TABLES, PARTS
from wafl.runs.method_keys import OWN as OWN_TABLE
from wafl.runs.plan import make_plan
from wafl.runs.read import apply_change, parse_experiment, read_experiment
from wafl.runs.study import Study
from wafl.schedule import Schedule
from wafl.weights import RULES

STARTER = files("wafl.runs").joinpath("starter.toml").read_text(encoding="utf-8")
NAN, INF = math.nan, math.inf


@pytest.fixture(autouse=True, scope="module")
def one_command() -> Generator[None, None, None]:
    """Typer builds its command again for every call, which takes longer than most commands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "300")
        patch.setattr("typer.testing._get_command", functools.cache(typer.main.get_command), raising=False)
        yield


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def check(path: Path, *changes: str) -> Any:
    return invoke("config", "check", "--trust", str(path), *(part for change in changes for part in ("--set", change)))


def assert_one_line(result: Any, *parts: str) -> None:
    """Exit status 2 and one line that holds each of the parts; no traceback."""
    assert result.exit_code == 2, result.output or result.exception
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1, result.stderr
    for part in parts:
        assert part in result.stderr


# -- Every key ------------------------------------------------------------------------------------------------


SCHEMA: dict[str, Any] = config.Experiment.model_json_schema()


def conforms(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value conforms to a schema, for the part of JSON schema that is used here."""
    if "$ref" in schema:
        return conforms(value, SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")])
    for union in ("anyOf", "oneOf"):
        if union in schema:
            fits = sum(conforms(value, option) for option in schema[union])
            return fits >= 1 if union == "anyOf" else fits == 1
    types: dict[str, Any] = {
        "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
        "null": type(None),
    }  # fmt: skip
    if "type" in schema and (
        not isinstance(value, types[schema["type"]])
        or (isinstance(value, bool) and schema["type"] in ("integer", "number"))
    ):
        return False
    if "const" in schema and value != schema["const"]:
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, dict):
        known: dict[str, Any] = schema.get("properties", {})
        return (
            all(name in value for name in schema.get("required", []))
            and (schema.get("additionalProperties") is not False or set(value) <= set(known))
            and all(conforms(item, known[name]) for name, item in value.items() if name in known)
        )
    if isinstance(value, list):
        return schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", INF) and all(
            conforms(item, schema.get("items", {})) for item in value
        )
    if isinstance(value, str):
        return "pattern" not in schema or re.search(schema["pattern"], value) is not None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (
            schema.get("minimum", -INF) <= value <= schema.get("maximum", INF)
            and schema.get("exclusiveMinimum", -INF) < value < schema.get("exclusiveMaximum", INF)
        ) or value in (INF, -INF)
    return True


LEAST: dict[str, Any] = {"schedule": {"rounds": 1, "local_steps": 1}, "methods": [{"method": "FedAvg"}]}
OPTIONS: dict[str, Any] = {
    "Schedule": Schedule,
    "Faults": Faults,
    "Tolerance": Tolerance,
    "Caps": Caps,
    "Privacy": Privacy,
}
"""The dataclasses whose options are keys of a file, by what the schema calls their tables."""
OPTIONS |= {name: preset.options for name, preset in wafl.METHODS.items()}
SLOTS: dict[str, Mapping[str, Any]] = {
    "client_weights": RULES, "server": {**OPTIMIZERS, **AGGREGATES}, "local": LOCAL_STEPS, "optimizer": OPTIMIZERS,
}  # fmt: skip
OPTIONS |= {f"{slot}_{kind}": part for slot, kinds in SLOTS.items() for kind, part in kinds.items()}


@dataclass(frozen=True)
class Table:
    """A table of a file: where it is, what it must have, and the schema of each of its keys."""

    place: str
    start: dict[str, Any]
    keys: dict[str, Any]

    def holding(self, **values: Any) -> dict[str, Any]:
        """An experiment in which the table has these values."""
        own = {**self.start, **values}
        *path, last = self.place.split(".") if self.place else [""]
        if not self.place:
            return {**LEAST, **own}
        if path == ["methods", "0", "server"]:
            own, last = {"kind": "median", last: own}, "server"
        if path:
            return {**LEAST, "methods": [{"method": "FedAvg", last: own}]}
        return {**LEAST, last: [own] if last == "methods" else {**LEAST.get(last, {}), **own}}

    def place_of(self, key: str) -> str:
        return ".".join(filter(None, (self.place.replace("methods", "methods.0", self.place == "methods"), key)))


def all_tables() -> dict[str, Table]:
    """Every table by its name in the schema; what all methods share is in one of them alone."""
    defs, found = SCHEMA["$defs"], dict[str, Table]()
    sections = {
        key: re.search(r"\$defs/(\w+)", json.dumps(schema))[1]  # pyright: ignore[reportOptionalSubscript]
        for key, schema in SCHEMA["properties"].items()
        if key != "methods" and "$ref" in json.dumps(schema)
    }
    plain = {key: schema for key, schema in SCHEMA["properties"].items() if key not in (*sections, "methods")}
    found["Experiment"] = Table("", {}, plain)
    for key, name in sections.items():
        found[name] = Table(key, {}, defs[name]["properties"])
    for name, table in METHOD_TABLES.items():
        keys = {key: schema for key, schema in defs[table.__name__]["properties"].items() if key != "method"}
        if name != "FedAvg":
            keys = {key: schema for key, schema in keys.items() if key not in defs["FedAvg"]["properties"]}
        found[table.__name__] = Table("methods", {"method": "mine:make" if name == OWN_TABLE else name}, keys)
    for slot, tables in PART_TABLES.items():
        place = "methods.0.server.optimizer" if slot == "optimizer" else f"methods.0.{slot}"
        for kind, table in tables.items():
            keys = {key: schema for key, schema in defs[table.__name__]["properties"].items() if key != "kind"}
            found[table.__name__] = Table(place, {"kind": "mine:make" if kind == OWN_TABLE else kind}, keys)
    return found


TABLES = all_tables()
KEYS = [(name, key) for name, table in TABLES.items() for key in table.keys]


def declared(option: Option) -> dict[str, Any] | None:
    """What the schema must say about the values of an option with limits; None if it says less than the reader."""
    limits = option.limits.range if isinstance(option.limits, EachRound) else option.limits
    if isinstance(limits, Count):
        return {"type": "integer", "minimum": limits.low, "maximum": 10**9}
    if isinstance(limits, Seed):
        return {"type": "integer", "minimum": 0, "exclusiveMaximum": 2**32}
    if isinstance(limits, Listed):
        return {"type": "array", "minItems": 1, "items": declared(replace(option, limits=limits.each))}
    if isinstance(limits, Choice) and INF not in limits.values:
        words = all(isinstance(value, str) for value in limits.values)
        return {"enum": list(limits.values), **({"type": "string"} if words else {})}
    if not isinstance(limits, Range):
        return {"type": {bool: "boolean", str: "string"}[option.kind]} if limits is None else None
    number: dict[str, Any] = {"type": "number"}
    if limits.low > -INF:
        number["exclusiveMinimum" if limits.low_open else "minimum"] = limits.low
    if limits.high < INF:
        number["exclusiveMaximum" if limits.high_open else "maximum"] = limits.high
    return number if limits.word is None else {"anyOf": [number, {"const": limits.word}]}


def own_options(name: str) -> dict[str, Option]:
    """The options that a table gets from a dataclass; parts of methods have tables of their own."""
    options = options_of(OPTIONS[name]) if name in OPTIONS else {}
    return {
        key: option for key, option in options.items() if key in TABLES[name].keys and key not in (*PARTS, "optimizer")
    }


DERIVED = [(name, key) for name in TABLES for key in own_options(name)]


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_a_key_of_its_table(name: str) -> None:
    keys = SCHEMA["$defs"][name]["properties"]
    assert options_of(OPTIONS[name]).keys() - {"seed"} <= keys.keys()
    for key, option in own_options(name).items():
        shared = TABLES[name].place in ("schedule", "methods") or "." in TABLES[name].place
        assert keys[key]["description"] == option.doc
        assert keys[key]["default"] == (None if shared else option.default)


@pytest.mark.parametrize(("name", "key"), DERIVED, ids=map(".".join, DERIVED))
def test_the_schema_of_an_option_has_its_declared_limits(name: str, key: str) -> None:
    option, schema = own_options(name)[key], TABLES[name].keys[key]
    expected, single = declared(option), schema
    for union in ("anyOf", "oneOf"):
        branches = [branch for branch in single.get(union, ()) if branch != {"type": "null"}]
        single = branches[0] if branches and single != expected else single
    if expected is not None:
        assert {
            word: value for word, value in single.items() if word not in ("title", "description", "default")
        } == expected


LOOSE = {
    "seeds", "norm", "client_weights", "center", "shape", "bounds", "space", "model.kind", "sizes", "radius", "power",
}  # fmt: skip
"""Keys of which the schema says less than the reader checks, so that a value may fit the schema alone."""
SCALARS = (True, 0, 1, -1, 2.5, -0.5, "1", "abc", "", "a b", "mine:make", "cuda:1", "../up", {}, {"a": 1})
TYPES = {"number": "number", "integer": "integer", "string": "string", "boolean": "boolean", "array": "list"}
ENDS = {"minimum": "greater than or equal to", "exclusiveMinimum": "greater than", "maximum": "less than or equal to"}
ENDS["exclusiveMaximum"] = "less than"


def inside(schema: Any) -> Generator[dict[str, Any], None, None]:
    """All schemas within one, itself included."""
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from inside(each)
    if isinstance(schema, dict):
        yield schema


def tried(schema: Any) -> list[Any]:
    """Values of every type, at both sides of every limit, alone and in lists, whether they are allowed or not."""
    limits = [each[end] for each in inside(schema) for end in ENDS if end in each]
    words = [
        word
        for each in inside(schema)
        for word in (*each.get("enum", ()), *([each["const"]] if "const" in each else ()))
    ]
    near = [limit + change for limit in limits for change in (-1, -1e-3, 0, 1e-3, 1)]
    wrong = [word.upper() for word in words if isinstance(word, str)]
    scalars = list({repr(each): each for each in (*SCALARS, *near, *words, *wrong)}.values())
    return [*scalars, [], [[0.5, 1.0]], *([each] for each in scalars), *([each, each] for each in scalars), NAN]


def branches(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The kinds of value that a schema allows."""
    several = schema.get("anyOf", schema.get("oneOf"))
    return [schema] if several is None else [each for branch in several for each in branches(branch)]


def reason(value: Any, schema: dict[str, Any]) -> str:
    """A part of what must be said about a single value that does not fit, if only one kind of value does."""
    kinds = [each for each in branches(schema) if each.get("type") != "null"]
    kinds = [each for each in kinds if each.get("type") != "array"] or kinds
    if isinstance(value, list | dict) or len(kinds) > 1 or kinds[0].get("type") not in TYPES or value != value:
        return ""
    (kind,) = kinds
    if "enum" in kind:
        return str(kind["enum"][-1])
    if not conforms(value, {"type": kind["type"]}):
        return TYPES[kind["type"]]
    ends = [end for end in ENDS if end in kind and not conforms(value, {end: kind[end]})]
    return f"{ENDS[ends[0]]} {kind[ends[0]]:.10g}" if ends else ""


@pytest.mark.parametrize(("name", "key"), KEYS, ids=map(".".join, KEYS))
def test_the_reader_accepts_what_the_schema_accepts_and_says_in_one_line_what_is_wrong_with_the_rest(
    name: str, key: str
) -> None:
    table, accepted = TABLES[name], 0
    schema, place = table.keys[key], re.escape(table.place_of(key))
    loose = key in LOOSE or table.place_of(key) in LOOSE
    for value in tried(schema):
        content = table.holding(**{key: value})
        try:
            parse_experiment(content, "exp.toml")
        except ConfigError as error:
            said = str(error)
            assert loose or not conforms(value, schema), (value, said)
            assert all(re.match(rf"exp\.toml: (unknown key )?{place}\b", line) for line in said.split("\n")), said
            assert isinstance(value, list) or "\n" not in said, said
            assert not any(word in said.lower() for word in ("literal[", "constrained", "tagged-union")), said
            assert loose or reason(value, schema) in said, (value, said)
        else:
            assert conforms(value, schema), "an editor must not mark a valid file"
            accepted += 1
    assert accepted or table.keys[key].get("$ref") or "$ref" in json.dumps(schema)


@pytest.mark.parametrize(("name", "key"), DERIVED, ids=map(".".join, DERIVED))
def test_infinity_is_allowed_where_an_option_says_so_and_tiny_and_huge_numbers_only_there(name: str, key: str) -> None:
    limits = own_options(name)[key].limits
    limits = limits.range if isinstance(limits, EachRound) else limits
    if not isinstance(limits, Range):
        return
    for value in (INF, -INF, 1e-40, 1e40):
        allowed = limits.holds(value) and (limits.infinite or limits.high < INF or 1e-30 <= abs(value) <= 1e30)
        with nullcontext() if allowed else pytest.raises(ConfigError, match=rf"{key} = {re.escape(repr(value))}"):
            parse_experiment(TABLES[name].holding(**{key: value}), "exp.toml")


RULE = "must be 'by_examples', 'uniform', "
CENTER = "must be 'by_examples' or 'uniform', or a list"
KINDS_OF_SERVERS = ", ".join(SLOTS["server"])


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        *(("methods.0.norm", value, "must be 1, 2 or inf") for value in (3, 0, -2, "two", True, NAN)),
        *(("attack.norm", value, "must be 1, 2 or inf") for value in (3, True, NAN)),
        *(("methods.0.power", value, "must be 1 or 2") for value in (3, 0, "2", True)),
        ("methods.0.radius", "large", "must be a number or 'auto'"),
        ("methods.0.radius", 0.0, "greater than 0"),
        ("methods.0.bounds", [1.0], "at least 2"),
        ("methods.0.bounds", [0, 1, 2], "at most 2"),
        ("methods.0.bounds", "01", "must be a list of two numbers, 'data' or 'none'"),
        ("methods.0.shape", "round", "must be 'clients', a list of one number per feature"),
        ("methods.0.shape", [1.0, "a"], "must be 'clients', a list of one number per feature"),
        *(("methods.0.client_weights", value, RULE) for value in ("unifrm", "a b:c", 3, True)),
        ("methods.0.client_weights", [1.0, -1.0], "greater than or equal to 0"),
        ("methods.0.client_weights", {"kind": "kl", "center": "agnostic"}, CENTER),
        ("methods.0.server", {}, f".kind is missing: one of {KINDS_OF_SERVERS}"),
        ("methods.0.server", {"kind": "nonsense"}, f".kind = 'nonsense' must be one of {KINDS_OF_SERVERS}"),
        ("methods.0.server", {"kind": 3}, f".kind = '3' must be one of {KINDS_OF_SERVERS}"),
        ("methods.0.server", {"kind": "ADAM"}, "did you mean adam?"),
        ("methods.0.server", {"kind": "a b:c"}, ".kind = 'a b:c': String should match pattern"),
        ("methods.0.server", {"kind": "krum", "optimizer": {"kind": "adm"}}, "optimizer.kind = 'adm' must be one of"),
        ("methods.0.server", {"kind": "krum", "optimizer": {"kind": "krum"}}, "must be one of sgd, momentum, adam"),
        *((key, [0, 0], "must differ") for key in ("seeds", "tune.seeds")),
        *((key, [0, 2**32], "less than 4294967296") for key in ("seeds", "tune.seeds")),
        *((key, [], "at least 1") for key in ("seeds", "tune.seeds")),
        *(("model.kind", value, "must be 'mlr' or 'cnn', or 'module:function'") for value in ("clr", 3, ["mlr"])),
        ("data.sizes", [-1.0, 2.0], "greater than or equal to 0"),
        ("tune.space", {"gamma": 3}, "dictionary"),
        ("tune.space", {"gamma": {"low": 1.0}}, "gamma.high is missing"),
        ("tune.space", {"gamma": {"low": -1.0, "high": 1.0}}, "gamma.low = -1.0"),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_the_error_of_a_value_that_only_the_reader_checks_says_what_is_allowed(
    place: str, value: Any, message: str
) -> None:
    name = {"methods": "WAFL", "attack": "Attack", "tune": "Tune", "model": "Model", "data": "Data"}
    table = TABLES[name.get(place.split(".")[0], "Experiment")]
    with pytest.raises(ConfigError) as caught:
        parse_experiment(table.holding(**{place.split(".")[-1]: value}), "exp.toml")
    said = str(caught.value)
    assert said.startswith(f"exp.toml: {place}"), said
    assert message in said, said
    assert "\n" not in said, said


@pytest.mark.parametrize(("name", "key"), KEYS, ids=map(".".join, KEYS))
def test_the_error_for_a_misspelled_key_suggests_the_closest_name(name: str, key: str) -> None:
    for typo in (key + key[-1], key[0] + key[2:] if len(key) > 3 else key + "x", key.capitalize()):
        with pytest.raises(ConfigError) as caught:
            parse_experiment(TABLES[name].holding(**{typo: 1}), "exp.toml")
        assert str(caught.value) == f"exp.toml: unknown key {TABLES[name].place_of(typo)}: did you mean {key}?"


def test_the_error_for_a_misspelled_end_of_a_searched_range_suggests_the_closest_name() -> None:
    content = TABLES["Tune"].holding(space={"gamma": {"low": 1.0, "high": 2.0, "hig": 3.0}})
    with pytest.raises(ConfigError, match=r"^exp\.toml: unknown key tune\.space\.gamma\.hig: did you mean high\?$"):
        parse_experiment(content, "exp.toml")


@pytest.mark.parametrize("name", TABLES)
def test_the_error_for_a_key_unlike_any_other_lists_all_keys(name: str) -> None:
    """``value`` and ``list`` are what the two branches of a swept value are called internally."""
    for unknown in ("zzzzz", "value", "list"):
        place = re.escape(TABLES[name].place_of(unknown))
        with pytest.raises(ConfigError, match=rf"^exp\.toml: unknown key {place}: ") as caught:
            parse_experiment(TABLES[name].holding(**{unknown: 1}), "exp.toml")
        if unknown == "zzzzz":
            assert set(str(caught.value).split("there are ")[1].split(", ")) >= TABLES[name].keys.keys()


def test_a_value_in_place_of_a_section_is_one_line() -> None:
    for section in (table.place for table in TABLES.values() if table.place and "methods" not in table.place):
        for value in (3, "a", [1], True):
            with pytest.raises(ConfigError, match=rf"^exp\.toml: {section} = .*dictionary") as caught:
                parse_experiment({**LEAST, section: value}, "exp.toml")
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ([], "exp.toml: methods = []: List should have at least 1 item"),
        (3, "exp.toml: methods = 3: should be a valid list"),
        ({"method": "WAFL"}, "exp.toml: methods: should be a valid list"),
        ([3], "exp.toml: methods.0 = 3: should be a valid dictionary"),
        ([{}], "exp.toml: methods.0.method is missing: one of WAFL, FedAvg"),
        ([{"method": "FedAvg"}, {"method": "wafl"}], "exp.toml: methods.1.method = 'wafl' must be one of"),
        ([{"method": "wafl"}], "did you mean WAFL?"),
        ([{"method": "FedPMG"}], "did you mean FedPGM?"),
        ([{"method": 3}], "exp.toml: methods.0.method = '3' must be one of"),
        ([{"method": "FedAvg"}, {"method": "FedAvg"}], "two methods are called 'fedavg': give each its own name"),
        ([{"method": "FedAvg", "name": "one"}, {"method": "WAFL", "name": "one"}], "two methods are called 'one'"),
        ([{"method": "FedAvg", "gamma": 1.0}], "exp.toml: unknown key methods.0.gamma"),
    ],
)
def test_an_invalid_list_of_methods_is_one_line(methods: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_experiment({"schedule": {"rounds": 1}, "methods": methods}, "exp.toml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_several_mistakes_are_reported_one_per_line() -> None:
    content = {
        "seeds": "all",
        "dta": {},
        "schedule": {"rounds": 0, "learning_rate": [0.1, -1.0]},
        "methods": [{"method": "WAFL", "gama": 1.0}, {"method": "FedAvg", "name": "a b"}],
        "faults": {"dropout": 0.6, "nan": 0.6},
    }
    with pytest.raises(ConfigError) as caught:
        parse_experiment(content, "exp.toml")
    lines = str(caught.value).splitlines()
    assert all(line.startswith("exp.toml: ") for line in lines)
    places = [
        "seeds = 'all'",
        "unknown key dta: did you mean data?", "schedule.rounds = 0", "schedule.learning_rate.1 = -1.0",
        "unknown key methods.0.gama: did you mean gamma?", "methods.1.name = 'a b'",
        "faults: the rates of the faults sum to 1.2",
    ]  # fmt: skip
    assert len(lines) == len(places)
    for place in places:
        assert any(place in line for line in lines), place


# -- The file -------------------------------------------------------------------------------------------------


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "exp.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("name = \n", 1),
        ("seeds = [0]\nname = digits\n", 2),
        ("seeds = [0]\n\n[data\nnum_clients = 3\n", 3),
        ("[data]\nnum_clients = 3\nnum_clients = 4\n", 3),
        ("a = 1\nb = 2\nc = x'\n", 3),
        ("[data]\n[data]\n", 2),
        ("a = 1979-02-30\n", 1),
        ("a = 1\nb = 0x\n", 2),
        ("a = \x00\n", 1),
    ],
)
def test_a_syntax_error_names_file_and_line(tmp_path: Path, text: str, line: int) -> None:
    path = write(tmp_path, text)
    assert_one_line(check(path), f"{path} is not TOML: ", f"line {line}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\xff\xfe\x00", "exp.toml cannot be read: "),
        (b"name = '\xe9'\n", "exp.toml cannot be read: "),
        (b"", "exp.toml: methods is missing"),
        (b"# only a comment", "exp.toml: methods is missing"),
        (b"a = " + b"[" * 5000, "exp.toml is not TOML: "),
        (b"[schedule]\nrounds = " + b"9" * 5000, "exp.toml"),
        (b"a = 1e400", "exp.toml: "),
    ],
    ids=["binary", "latin-1", "empty", "comment", "deep", "long number", "infinite"],
)
def test_a_file_that_is_not_an_experiment_is_refused(tmp_path: Path, text: bytes, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_experiment(path)
    assert message in str(caught.value)
    result = check(path)
    assert (result.exit_code, message in result.stderr) == (2, True)


def test_a_missing_file_or_a_folder_is_one_line(tmp_path: Path) -> None:
    assert_one_line(check(tmp_path / "none.toml"), str(tmp_path / "none.toml"), "`wafl config init` writes a starter")
    assert_one_line(check(tmp_path), str(tmp_path), "cannot be read")


@pytest.mark.parametrize("key", ['"a\\nb"', '""', '"\\u0000"', '"☃"', '" "', '"a.b"', '"[red]"'])
@pytest.mark.parametrize("section", ["", "[data]\n", "[model]\n"])
def test_a_key_that_is_not_a_word_is_reported_in_one_line(tmp_path: Path, section: str, key: str) -> None:
    head, tail = STARTER.split(section, 1) if section else ("", STARTER)
    path = write(tmp_path, f"{head}{section}{key} = 1\n{tail}")
    assert_one_line(check(path), f"{path}: unknown key")


def test_line_ends_and_byte_order_mark_of_windows_are_accepted(tmp_path: Path) -> None:
    """Its line ends, and the mark that its editor puts at the start of a file in UTF-8."""
    assert check(write(tmp_path, STARTER.replace("\n", "\r\n"))).exit_code == 0
    assert check(write(tmp_path, b"\xef\xbb\xbf" + STARTER.encode())).exit_code == 0


def test_a_path_with_brackets_is_shown_as_it_is(tmp_path: Path) -> None:
    """Rich would read words in brackets as styles."""
    path = tmp_path / "exp[bold][new].toml"
    path.write_text(STARTER)
    result = check(path)
    assert result.exit_code == 0
    assert path.name in "".join(result.stdout.split("\n"))


# -- What only the data can say -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["schedule.cohort=21"], "cohort=21 is larger than the number of clients, 20"),
        (["data.labels_per_client=11"], "labels_per_client=11 must lie in 1 .. 10"),
        (["data.labels_per_client=3", "data.num_clients=2"], "2 clients with 3 labels each cannot hold all 10"),
        (["data.iid=true"], "not labels_per_client and iid"),
        (["data.dataset=digts"], "unknown data set 'digts': did you mean 'digits'?"),
        (["data.sizes=[10.0, inf]"], "sizes"),
        (["data.sizes=[0.0, 1.0]"], "size"),
        (["data.sizes=[10.0, nan]"], "sizes"),
        (["schedule.local_steps=2"], "give local_steps or local_epochs"),
        (["methods.wafl.radius=1.0"], "give gamma or radius, not both"),
        (["methods.wafl={method='WAFL', radius='auto'}", "data={num_clients=3, iid=true}"], "at least 4 of them"),
        (["methods.wafl.weights_step=0.1"], "weights_step"),
        (["methods.wafl.weights_step=[0.1, 0.2]"], "weights_step"),
        (["methods.wafl.strict=true"], "strict=True needs radius="),
        (["methods.wafl.bounds=[0.0, 0.5]"], "the examples lie in [0, 1], outside bounds=(0.0, 0.5)"),
        (["methods.wafl.bounds=[0.5, 0.2]"], "bounds=(0.5, 0.2) must be (low, high)"),
        (["methods.wafl.gamma=1e300"], "gamma"),
        (["methods.fedavg.client_weights=[1.0]"], "1 client weights for 20 clients"),
        (["methods.fedavg.client_weights=[]"], "weights"),
        (["methods.1.method=AFL", "methods.1.local_steps=2"], "AFL's clients take exactly one step per round"),
        (["methods.1.method=AFL", "methods.1.cohort=5"], "AFL asks all 20 clients each round"),
        (["model.loss=squared_error"], "loss='squared_error' needs floating-point targets"),
        (
            ["data.preprocess=zscore", "attack.kind=autoattack"],
            "use data that declare theirs (preprocess 'unit' or 'symmetric')",
        ),
        (["data.test_fraction=0.0"], "test_fraction"),
        (["early_stopping.metric=nonsense"], "nonsense"),
        (["early_stopping.metric=accuracy"], "evaluation.every"),
        (["methods.wafl.gamma=[1.0, 1.0]"], "gamma"),
        (["methods.wafl.name=checkpoint"], "checkpoint"),
        (["methods.wafl.name=figures"], "figures"),
        (["methods.wafl.name=results.json"], "results.json"),
        (["methods.wafl.name=FedAvg"], "fedavg"),
    ],
    ids=lambda value: "; ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_check_reports_what_cannot_be_trained(tmp_path: Path, changes: list[str], message: str) -> None:
    """So a study fails before its folder is made, and not after it has been trained."""
    result = check(write(tmp_path, STARTER), *changes)
    assert_one_line(result)
    assert message.lower() in result.stderr.lower()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_check_reports_a_missing_device(tmp_path: Path) -> None:
    assert_one_line(check(write(tmp_path, STARTER), "device=cuda"), "device='cuda'", "use device='cpu'")


@pytest.mark.parametrize("alpha", [1e-308, 1e308])
def test_extreme_values_of_dirichlet_make_no_traceback(tmp_path: Path, alpha: float) -> None:
    result = check(write(tmp_path, STARTER.replace("labels_per_client = 3", f"dirichlet = {alpha}")))
    assert result.exit_code in (0, 2), result.exception


def test_check_says_what_would_be_trained_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, STARTER)
    result = check(path, "methods.fedavg.learning_rate=[0.1, 0.2, 0.3]", "methods.fedavg.rounds=7")
    assert result.exit_code == 0, result.stderr
    assert "20 clients" in result.stdout
    assert "wafl: WAFL, 30 rounds, 4 runs, swept: gamma" in result.stdout
    assert "fedavg: FedAvg, 7 rounds, 6 runs, swept: learning_rate" in result.stdout
    assert "is in order" in result.stdout
    assert [entry.name for entry in tmp_path.iterdir()] == ["exp.toml"]


# -- Changes on the command line ------------------------------------------------------------------------------


def changed(*changes: str) -> dict[str, Any]:
    content = tomllib.loads(STARTER)
    for change in changes:
        apply_change(content, change)
    return content


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("schedule.rounds=50", lambda c: c["schedule"]["rounds"] == 50),
        ("schedule.learning_rate = 0.5", lambda c: c["schedule"]["learning_rate"] == 0.5),
        ("schedule.learning_rate=[0.1, 0.2]", lambda c: c["schedule"]["learning_rate"] == [0.1, 0.2]),
        ("name=other", lambda c: c["name"] == "other"),
        ('name="other"', lambda c: c["name"] == "other"),
        ("data.iid=true", lambda c: c["data"]["iid"] is True),
        ("seeds=[3, 4, 5]", lambda c: c["seeds"] == [3, 4, 5]),
        ("seeds.1=9", lambda c: c["seeds"] == [0, 9]),
        ("methods.0.gamma=7.0", lambda c: c["methods"][0]["gamma"] == 7.0),
        ("methods.wafl.gamma=7.0", lambda c: c["methods"][0]["gamma"] == 7.0),
        ("methods.WAFL.gamma=7.0", lambda c: c["methods"][0]["gamma"] == 7.0),
        ("methods.fedavg.rounds=7", lambda c: c["methods"][1]["rounds"] == 7 and "rounds" not in c["methods"][0]),
        ("methods.1={method='DRFA'}", lambda c: c["methods"][1] == {"method": "DRFA"}),
        ("methods=[{method='DRFA'}]", lambda c: c["methods"] == [{"method": "DRFA"}]),
        ("methods.0.gamma.1=9.0", lambda c: c["methods"][0]["gamma"] == [1.0, 9.0]),
        ("faults.dropout=0.1", lambda c: c["faults"] == {"dropout": 0.1}),
        ("faults={dropout=0.1, nan=0.2}", lambda c: c["faults"] == {"dropout": 0.1, "nan": 0.2}),
        ("model.kind=mine:build", lambda c: c["model"]["kind"] == "mine:build"),
        ("attack.norm=inf", lambda c: c["attack"]["norm"] == INF),
        ("name=a=b", lambda c: c["name"] == "a=b"),
    ],
)
def test_a_change_sets_its_key_and_nothing_else(change: str, expected: Any) -> None:
    content = changed(change)
    assert expected(content)
    untouched = tomllib.loads(STARTER)
    top = change.split(".")[0].split("=")[0].strip()
    assert {key: value for key, value in content.items() if key != top} == {
        key: value for key, value in untouched.items() if key != top
    }


def test_a_method_is_changed_by_its_name_and_later_changes_win() -> None:
    content = changed("methods.0.name=near", "methods.near.gamma=2.0", "methods.near.gamma=3.0")
    assert content["methods"][0]["gamma"] == 3.0
    with pytest.raises(ConfigError, match="no entry 'wafl'; there are 2: near, fedavg"):
        apply_change(content, "methods.wafl.gamma=1.0")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("rounds", "--set 'rounds' must be key=value, such as schedule.rounds=50"),
        ("=3", "--set '=3' must be key=value"),
        ("  =3", "must be key=value"),
        ("rounds=3", "exp.toml: unknown key rounds"),
        ("schedule.round=3", "exp.toml: unknown key schedule.round: did you mean rounds?"),
        ("scedule.rounds=3", "exp.toml: unknown key scedule: did you mean schedule?"),
        ("schedule.rounds=", "exp.toml: schedule.rounds = '': should be a valid integer"),
        ("schedule.rounds=many", "exp.toml: schedule.rounds = 'many': should be a valid integer"),
        ("schedule.rounds=-3", "exp.toml: schedule.rounds = -3: should be greater than or equal to 1"),
        ("schedule.learning_rate=0.1,0.2", "exp.toml: schedule.learning_rate = '0.1,0.2': should be a valid number"),
        ("schedule.rounds.more=3", "schedule.rounds is a value and has no key 'more'"),
        ("schedule.rounds.more.and=3", "there is no 'more' in a value"),
        ("schedule=3", "exp.toml: schedule = 3"),
        ("methods.2.gamma=1.0", "no entry '2'; there are 2: wafl, fedavg"),
        ("methods.-1.gamma=1.0", "no entry '-1'"),
        ("methods.drfa.gamma=1.0", "no entry 'drfa'; there are 2: wafl, fedavg"),
        ("seeds.5=1", "no entry '5'; there are 2"),
        ("methods.fedavg.gamma=1.0", "exp.toml: unknown key methods.1.gamma"),
        ("a=" + "[" * 5000, "--set"),
        ("schedule.rounds=" + "9" * 5000, "schedule.rounds"),
    ],
    ids=lambda value: value[:40],
)
def test_a_change_that_cannot_be_made_is_one_line(tmp_path: Path, change: str, message: str) -> None:
    path = write(tmp_path, STARTER)
    assert_one_line(check(path, change), message)
    assert path.read_text() == STARTER


# -- Fuzzing --------------------------------------------------------------------------------------------------


VALUES = st.sampled_from(
    ["-1", "0", "1", "3", "20", "0.5", "-0.5", "1e-300", "1e300", "1e400", "-1e400", "nan", "inf", "-inf",
     "9" * 30, "-" + "9" * 30, "true", "false", '""', '"a"', '"é☃\\u0000"', "'''a\nb'''", "[]", "[[]]", "[1, 'a']",
     "[0.1, 0.2]", "[nan]", "[5.0, inf]", "{}", "{a = 1}", "{method = 'WAFL'}", "1979-05-27", "07:32:00",
     "1979-05-27T07:32:00Z", "[" * 60 + "]" * 60, "{a = " * 40 + "1" + "}" * 40,
     '"inf"', "0x10", "1_000", '"value"', '"mlr"', '"a:b"', '"..:a"'],
)  # fmt: skip
KINDS = ["insert", "delete", "replace", "double", "drop", "swap", "value", "key", "key", "key", "nest"]
CHARACTERS = st.sampled_from(list("=[]{}\"'#.,-_+e0123456789\n \t\\\x00aé☃\ufeff\U0001f600"))


def as_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {as_toml(item)}" for name, item in value.items()) + "}"
    return json.dumps(value).replace("Infinity", "inf")


PLAIN_KEYS = [(name, key) for name, key in KEYS if "." not in TABLES[name].place]


def set_in(text: str, table: Table, name: str, value: str) -> str:
    """The text with a key set in its table, replacing one that is there."""
    header = f"[{table.place}]" if table.place else "\n"
    if table.place == "methods":
        header = f'[[methods]]\nmethod = "{table.start["method"]}"'
    head, found, tail = text.partition(header)
    if not found:
        return f"{text}\n{header}\n{name} = {value}\n"
    own, bracket, rest = tail.partition("\n[")
    own = re.sub(rf"\n{name} *=.*", "", own)
    return f"{head}{found}\n{name} = {value}{own}{bracket}{rest}"


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """The starter with a few random mistakes."""
    text = STARTER
    for _ in range(draw(st.integers(1, 4))):
        lines = text.split("\n")
        place = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(KINDS)):
            case "insert":
                at = draw(st.integers(0, len(text)))
                text = text[:at] + draw(CHARACTERS) + text[at:]
            case "delete":
                at = draw(st.integers(0, max(len(text) - 1, 0)))
                text = text[:at] + text[at + draw(st.integers(1, 5)) :]
            case "replace":
                at = draw(st.integers(0, max(len(text) - 1, 0)))
                text = text[:at] + draw(CHARACTERS) + text[at + 1 :]
            case "double":
                text = "\n".join([*lines[:place], lines[place], *lines[place:]])
            case "drop":
                text = "\n".join([*lines[:place], *lines[place + 1 :]])
            case "swap":
                other = draw(st.integers(0, len(lines) - 1))
                lines[place], lines[other] = lines[other], lines[place]
                text = "\n".join(lines)
            case "value":
                keyed = [number for number, line in enumerate(lines) if re.match(r"\w+ *=", line)]
                if keyed:
                    line = draw(st.sampled_from(keyed))
                    lines[line] = re.sub(r"= .*", lambda _: f"= {draw(VALUES)}", lines[line])
                text = "\n".join(lines)
            case "key":
                name, key = draw(st.sampled_from(PLAIN_KEYS))
                near = st.sampled_from([as_toml(value) for value in tried(TABLES[name].keys[key])])
                text = set_in(text, TABLES[name], key, draw(near | VALUES))
            case _:
                header = draw(
                    st.sampled_from(["[data.a.b]", "[[methods.a]]", "[methods]", "[[data]]", "[schedule.value]", "[a]"])
                )
                text = "\n".join([*lines[:place], header, *lines[place:]])
    data = text.encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 30)) == 0:
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(min_size=1, max_size=8)) + data[at:]
    return data


def is_large(data: bytes) -> bool:
    """Whether it may be a valid experiment that takes long to check, or needs data from elsewhere."""
    try:
        content = tomllib.loads(data.decode())
    except (ValueError, RecursionError):
        return False

    def numbers(value: Any, name: str = "") -> Generator[tuple[str, Any], None, None]:
        for key, item in value.items() if isinstance(value, dict) else [(name, item) for item in value]:
            if isinstance(item, dict | list):
                yield from numbers(item, key)
            elif not isinstance(item, str):
                yield key, item

    costly = {"num_clients": 500, "steps": 50, "restarts": 5, "channels": 50, "local_steps": 500, "local_epochs": 50}
    given = content.get("data")
    elsewhere = isinstance(given, dict) and given.get("dataset", "digits") != "digits"
    return elsewhere or any(
        isinstance(item, int) and item > costly.get(name, math.inf) for name, item in numbers(content)
    )


def refuse_or_pass(folder: Path, data: bytes) -> None:
    """Exit status 0, or 2 and a message that says where; never a traceback."""
    path = folder / "exp.toml"
    path.write_bytes(data)
    result = check(path)
    assert result.exception is None or isinstance(result.exception, SystemExit), (result.exception, data)
    assert result.exit_code in (0, 2)
    if result.exit_code == 2:
        said = result.stderr.removeprefix("Error: ")
        keys = {key for _, key in KEYS} | {"methods", "method", *SCHEMA["properties"]}
        places = {"line ", "at end of document", "cannot be read", "unknown key", "clients with", "size", "weights"}
        assert any(place in said for place in places | keys), said


@settings(max_examples=200, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None)
@given(data=mutated())
def test_no_file_makes_a_traceback(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    assume(not is_large(data))
    refuse_or_pass(tmp_path_factory.getbasetemp(), data)


@pytest.mark.slow
@settings(max_examples=2000, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None)
@given(data=mutated())
def test_no_file_of_thousands_makes_a_traceback(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    assume(not is_large(data))
    refuse_or_pass(tmp_path_factory.getbasetemp(), data)


SMALL = ["schedule.rounds=1", "seeds=[0]", "attack.steps=1", "evaluation.attacked=[0.5]"]


def run_what_check_accepts(folder: Path, data: bytes) -> None:
    path = folder / "exp.toml"
    path.write_bytes(data)
    changes = [word for change in SMALL for word in ("--set", change)]
    if invoke("config", "check", str(path), *changes).exit_code == 0:
        result = invoke("run", str(path), "--output", str(folder / "runs"), *changes)
        assert result.exit_code in (0, 3) or "diverged" in result.stderr, (result.stderr, data)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=10, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None)
@given(data=mutated())
def test_what_check_accepts_is_run(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    assume(not is_large(data))
    run_what_check_accepts(tmp_path_factory.getbasetemp(), data)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=200, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None)
@given(data=mutated())
def test_what_check_accepts_of_hundreds_of_files_is_run(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    assume(not is_large(data))
    run_what_check_accepts(tmp_path_factory.getbasetemp(), data)


# -- Starter and schema ---------------------------------------------------------------------------------------


def test_init_writes_a_starter_that_passes_check_and_refuses_to_overwrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("config", "init")
    assert (result.exit_code, "wafl run experiment.toml" in result.stdout) == (0, True)
    path = tmp_path / "experiment.toml"
    assert path.read_text() == STARTER
    assert check(path).exit_code == 0
    path.write_text("mine")
    assert_one_line(invoke("config", "init"), "experiment.toml exists already: choose another name, or remove it")
    assert path.read_text() == "mine"
    assert_one_line(invoke("config", "init", str(tmp_path)), "exists already")
    assert_one_line(invoke("config", "init", "no/such/folder/x.toml"), "no/such/folder/x.toml")


def test_the_starter_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke("config", "init", "mine.toml").exit_code == 0
    result = invoke("run", "mine.toml", "--set", "schedule.rounds=1", "--set", "attack.steps=1")
    assert result.exit_code == 0, result.output
    folder = tmp_path / "runs" / "digits"
    results = json.loads((folder / "results.json").read_text())
    assert list(results["methods"]) == ["wafl-gamma=1.0", "wafl-gamma=4.0", "FedAvg"]
    assert all(label in result.stdout for label in results["methods"])


def test_the_comments_of_the_starter_are_true(tmp_path: Path) -> None:
    """The alternatives that they name are accepted too."""
    alternatives = {
        "labels_per_client = 3": ["dirichlet = 0.5", "iid = true"],
        'preprocess = "unit"': [f'preprocess = "{unit}"' for unit in ("symmetric", "zscore", "zscore_pooled")],
        'kind = "mlr"': ['kind = "cnn"'],
        "local_epochs = 2": ["local_steps = 2"],
        "# clip_norm = 1.0": ["clip_norm = 1.0"],
        '# server = { kind = "adam", rate = 0.01 }': [
            f'server = {{ kind = "{kind}", rate = 0.01 }}' for kind in ("adam", "sgd", "momentum", "yogi")
        ],
        '# local = { kind = "prox", mu = 0.1 }': [
            'local = { kind = "prox", mu = 0.1 }',
            'local = { kind = "control_variates" }',
        ],
        "norm = 2": ["norm = 1", "norm = inf"],
        'kind = "pgd"': [f'kind = "{kind}"' for kind in ("fgsm", "wasserstein", "none")],
    }
    for old, others in alternatives.items():
        assert STARTER.count(old) == 1
        for new in others:
            result = check(write(tmp_path, STARTER.replace(old, new)))
            assert result.exit_code == 0, (new, result.stderr)
    optional = STARTER[STARTER.index("# [early_stopping]") :].replace("# ", "", 1).replace("\n# ", "\n")
    result = check(write(tmp_path, STARTER[: STARTER.index("# [early_stopping]")] + optional))
    assert result.exit_code == 0, result.stderr
    experiment = read_experiment(tmp_path / "exp.toml")
    assert experiment.early_stopping is not None
    assert experiment.faults is not None


def test_the_command_prints_the_schema_as_strict_json() -> None:
    """JSON has no infinity."""
    said = invoke("config", "schema").stdout
    printed = json.loads(said, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert printed == json.loads(json.dumps(SCHEMA).replace(": Infinity", ': "inf"'))


def test_the_schema_describes_every_table_and_has_no_loose_ends() -> None:
    assert SCHEMA["type"] == "object"
    assert SCHEMA["required"] == ["methods"]
    references = set(re.findall(r'"#/\$defs/(\w+)"', json.dumps(SCHEMA)))
    assert references == set(SCHEMA["$defs"]) == (set(TABLES) | {"Between"}) - {"Experiment"}
    for model in (SCHEMA, *SCHEMA["$defs"].values()):
        assert model["additionalProperties"] is False


def test_the_schema_accepts_the_starter_and_refuses_what_the_reader_refuses() -> None:
    starter = tomllib.loads(STARTER)
    assert conforms(starter, SCHEMA)
    for path, value in (
        (("seeds",), []), (("seeds",), [-1]), (("sedes",), [1]), (("schedule", "rounds"), 0),
        (("data", "dirichlet"), 0.0), (("schedule", "learning_rate"), [0.1, -1.0]), (("methods",), []),
        (("attack", "kind"), "pdg"),
        (("methods",), [{"method": "wafl"}]), (("methods",), [{"method": "FedAvg", "gamma": 1.0}]), (("name",), "a b"),
    ):  # fmt: skip
        content = copy.deepcopy(starter)
        target = content
        for part in path[:-1]:
            target = target[part]
        target[path[-1]] = value
        with pytest.raises(ConfigError):
            parse_experiment(content, "exp.toml")
        assert not conforms(content, SCHEMA), (path, value)


# -- A file trains what the functions train -------------------------------------------------------------------


BASE: dict[str, Any] = {
    "seeds": [0, 4],
    "data": {"num_clients": 5, "labels_per_client": 4},
    "schedule": {"rounds": 2, "cohort": 3, "local_steps": 2, "batch_size": 16, "learning_rate": 0.1},
    "attack": {"kind": "none"},
}
COMMON: dict[str, Any] = {"rounds": 2, "cohort": 3, "local_steps": 2, "batch_size": 16, "learning_rate": 0.1}
ONE_STEP: dict[str, Any] = {"rounds": 2, "local_steps": 1, "batch_size": 16, "learning_rate": 0.1}
LAMBDA = [1.0, 0.0, 2.0, 1.0, 4.0]


@pytest.fixture(scope="module")
def clients() -> wafl.Federation:
    return wafl.load_dataset("digits").partition(num_clients=5, labels_per_client=4)


@pytest.mark.parametrize(
    ("entry", "method", "grid", "schedule"),
    [
        ({"method": "WAFL", "gamma": [1.0, 4.0]}, wafl.WAFL(), {"gamma": [1.0, 4.0]}, COMMON),
        (
            {"method": "WAFL", "radius": [0.2, 0.4], "learning_rate": [0.1, 0.3]},
            wafl.WAFL(radius=0.2), {"radius": [0.2, 0.4], "learning_rate": [0.1, 0.3]}, COMMON,
        ),
        (
            {"method": "WAFL", "gamma": 2.0, "norm": [1, "inf"], "steps": 3, "bounds": [0.0, 1.0]},
            wafl.WAFL(gamma=2.0, steps=3, bounds=(0.0, 1.0)), {"norm": [1.0, INF]}, COMMON,
        ),
        (
            {"method": "WAFL", "gamma": 2.0, "client_weights": "agnostic", "weights_step": [0.1, 0.2]},
            wafl.WAFL(gamma=2.0, client_weights=wafl.weights.agnostic(0.1)), {"weights_step": [0.1, 0.2]}, ONE_STEP,
        ),
        (
            {"method": "WAFL", "gamma": 2.0, "client_weights": "snapshot", "weights_step": 0.03},
            wafl.WAFL(gamma=2.0, client_weights=wafl.weights.snapshot(0.03)), {}, COMMON,
        ),
        (
            {"method": "WAFL", "gamma": 2.0, "client_weights": LAMBDA},
            wafl.WAFL(gamma=2.0, client_weights=wafl.weights.fixed(LAMBDA)), {}, COMMON,
        ),
        (
            {"method": "FedAvg", "client_weights": "uniform"},
            wafl.FedAvg(client_weights=wafl.weights.uniform()), {}, COMMON,
        ),
        (
            {"method": "FedAvg", "momentum": [0.0, 0.9], "weight_decay": 0.01, "server_learning_rate": 0.5},
            wafl.FedAvg(), {"momentum": [0.0, 0.9]}, {**COMMON, "weight_decay": 0.01, "server_learning_rate": 0.5},
        ),
        (
            {"method": "FedAvg", "rounds": 3, "local_epochs": 1, "cohort": [2, 5]},
            wafl.FedAvg(), {"cohort": [2, 5]},
            {"rounds": 3, "local_epochs": 1, "batch_size": 16, "learning_rate": 0.1},
        ),
        (
            {"method": "FedPGM", "epsilon": [0.05, 0.1], "steps": 2, "random_start": True},
            wafl.FedPGM(steps=2, random_start=True), {"epsilon": [0.05, 0.1]}, COMMON,
        ),
        ({"method": "FedFGSM", "epsilon": 0.2, "norm": 2}, wafl.FedFGSM(epsilon=0.2, norm=2.0), {}, COMMON),
        ({"method": "FedRobust", "penalty": [1.0, 5.0]}, wafl.FedRobust(), {"penalty": [1.0, 5.0]}, COMMON),
        ({"method": "AFL"}, wafl.AFL(), {}, ONE_STEP),
        (
            {"method": "AFL", "weights_step": [0.1, 0.5], "rounds": 4},
            wafl.AFL(), {"weights_step": [0.1, 0.5]}, {**ONE_STEP, "rounds": 4},
        ),
        (
            {"method": "WAFL", "gamma": 2.0, "client_weights": {"kind": "cvar", "alpha": 0.3, "center": LAMBDA}},
            wafl.WAFL(gamma=2.0, client_weights=wafl.weights.cvar(0.3, wafl.weights.fixed(LAMBDA))), {}, COMMON,
        ),
        (
            {"method": "TERM", "t": [0.5, -2.0], "center": "uniform"},
            wafl.TERM(center=wafl.weights.uniform()), {"t": [0.5, -2.0]}, COMMON,
        ),
        ({"method": "DRFA", "weights_step": 0.2}, wafl.DRFA(weights_step=0.2), {}, COMMON),
        ({"method": "DRFA", "weights_step": [0.1, 0.2]}, wafl.DRFA(), {"weights_step": [0.1, 0.2]}, COMMON),
        ({"method": "FedProx", "mu": [0.0, 0.5]}, wafl.FedProx(), {"mu": [0.0, 0.5]}, COMMON),
        ({"method": "SCAFFOLD", "clip_norm": [0.1, 1.0]}, wafl.SCAFFOLD(), {"clip_norm": [0.1, 1.0]}, COMMON),
        ({"method": "FedAvgM", "beta": [0.0, 0.9], "rate": 0.5}, wafl.FedAvgM(rate=0.5), {"beta": [0.0, 0.9]}, COMMON),
        ({"method": "FedAdam", "rate": [0.01, 0.1]}, wafl.FedAdam(), {"rate": [0.01, 0.1]}, COMMON),
        ({"method": "FedYogi", "tau": [0.001, 0.1]}, wafl.FedYogi(), {"tau": [0.001, 0.1]}, COMMON),
        (
            {"method": "WAFL", "gamma": [1.0, 4.0], "server": {"kind": "adam", "rate": 0.02, "tau": 0.01},
             "local": {"kind": "prox", "mu": 0.3}, "clip_norm": 0.5},
            wafl.WAFL(server=wafl.servers.adam(0.02, tau=0.01), local=wafl.local.prox(0.3)),
            {"gamma": [1.0, 4.0]}, {**COMMON, "clip_norm": 0.5},
        ),
        (
            {"method": "DRFA", "server": {"kind": "momentum", "beta": 0.5}, "local": {"kind": "control_variates"}},
            wafl.DRFA(server=wafl.servers.momentum(beta=0.5), local=wafl.local.control_variates()), {}, COMMON,
        ),
        (
            {"method": "FedAvg",
             "server": {"kind": "trimmed_mean", "trim": 0.3, "optimizer": {"kind": "sgd", "rate": 2}}},
            wafl.FedAvg(server=wafl.servers.trimmed_mean(0.3, optimizer=wafl.servers.sgd(2))), {}, COMMON,
        ),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) and "method" in value else "",
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
def test_a_list_is_a_sweep_whose_runs_equal_those_made_in_python(
    tmp_path: Path,
    clients: wafl.Federation,
    entry: dict[str, Any],
    method: wafl.Method,
    grid: dict[str, list[Any]],
    schedule: dict[str, Any],
) -> None:
    study = Study.create(parse_experiment({**BASE, "methods": [{**entry, "name": "m"}]}, "here"), tmp_path / "study")
    study.run()
    by_hand = wafl.sweep(wafl.models.mlr(clients), clients, method, {**grid, "seed": [0, 4]}, **schedule)
    folders = sorted(path.parent for path in (tmp_path / "study").rglob("run.json"))
    assert len(folders) == len(by_hand)
    for run in by_hand:
        point = dict(run.settings["sweep"])
        folder = (
            tmp_path / "study" / ("m" + "".join(f"-{key}={value}" for key, value in point.items() if key != "seed"))
        )
        saved = wafl.load_run(folder if point["seed"] == 0 else folder / "seed-4")
        assert saved.settings["schedule"] == run.settings["schedule"]
        assert saved.settings["method"] == run.settings["method"]
        assert all(torch.equal(value, saved.params[name]) for name, value in run.params.items())
        assert torch.equal(saved.client_weights, run.client_weights)
        assert saved.history.column("loss") == run.history.column("loss")
        options = {name: INF if value == "inf" else value for name, value in point.items() if name in method.options()}
        timing = {name: value for name, value in point.items() if name not in options}
        alone = wafl.fit(wafl.models.mlr(clients), clients, method.with_options(**options), **{**schedule, **timing})
        for name, value in alone.params.items():
            torch.testing.assert_close(saved.params[name], value, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
def test_the_order_of_a_sweep_is_that_of_the_keys_in_every_process() -> None:
    """Or a resume in another process would not find the runs and the checkpoint."""
    swept = {
        "restarts": [0, 1], "tolerance": [0.0, 0.1], "steps": [1, 2], "power": [1, 2], "norm": [1, 2],
        "gamma": [1.0, 2.0], "momentum": [0.0, 0.5], "learning_rate": [0.1, 0.2],
    }  # fmt: skip
    content = {**BASE, "seeds": [0], "methods": [{"method": "WAFL", **swept}]}
    (entry,) = make_plan(parse_experiment(content, "here")).entries
    assert list(entry.grid) == [
        "gamma", "norm", "power", "steps", "tolerance", "restarts", "learning_rate", "momentum",
    ]  # fmt: skip


def test_everything_in_a_file_reaches_the_plan(tmp_path: Path) -> None:
    content = {
        **BASE,
        "data": {"num_clients": 6, "dirichlet": 5.0, "preprocess": "symmetric", "test_fraction": 0.5, "seed": 3},
        "model": {"kind": "cnn", "channels": [2, 3], "seed": 5},
        "methods": [{"method": "FedAvg"}],
        "attack": {"kind": "pgd", "epsilon": 0.3, "norm": 2, "steps": 7, "step_size": 0.1},
        "faults": {"dropout": 0.1, "late": 0.2, "seed": 8},
        "tolerance": {"min_replies": 0.2, "attempts": 9, "outsized": 7.0},
    }
    plan = make_plan(parse_experiment(content, "here"))
    clients = wafl.load_dataset("digits").partition(
        num_clients=6, dirichlet=5.0, preprocess="symmetric", test_fraction=0.5, seed=3
    )
    assert torch.equal(plan.federation.train.x, clients.train.x)
    assert torch.equal(plan.federation.test.y, clients.test.y)
    expected = wafl.models.cnn(clients, channels=(2, 3), seed=5)
    assert all(
        torch.equal(one, other) for one, other in zip(plan.model.parameters(), expected.parameters(), strict=True)
    )
    assert plan.attack == wafl.PGD(epsilon=0.3, norm=2, steps=7, step_size=0.1, bounds=clients.bounds)
    assert plan.clients.faults is not None
    assert plan.clients.faults.rates() == {"dropout": 0.1, "late": 0.2, "nan": 0.0, "infinity": 0.0, "wrong_shape": 0.0}
    assert plan.clients.faults.seed == 8
    assert plan.clients.tolerance is not None
    assert plan.clients.tolerance == Tolerance(min_replies=0.2, attempts=9, outsized=7.0)


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        ({"kind": "none"}, None),
        ({"kind": "fgsm", "epsilon": 0.2}, wafl.FGSM(0.2, INF, (0.0, 1.0))),
        ({"kind": "wasserstein", "radius": 0.4}, wafl.WassersteinShift(0.4, 2, bounds=(0.0, 1.0))),
        ({"kind": "wasserstein", "norm": "inf", "bounds": "none"}, wafl.WassersteinShift(1.0, INF, bounds=None)),
        ({"bounds": [-1, 2.5], "norm": 2}, wafl.PGD(epsilon=0.1, norm=2, bounds=(-1.0, 2.5))),
        ({}, wafl.PGD(epsilon=0.1, steps=40, bounds=(0.0, 1.0))),
    ],
)
def test_an_attack_named_in_a_file_is_the_one_of_the_library(attack: dict[str, Any], expected: Any) -> None:
    experiment = parse_experiment({**BASE, "attack": attack, "methods": [{"method": "FedAvg"}]}, "here")
    assert make_plan(experiment).attack == expected


def test_a_method_may_have_a_schedule_of_its_own_without_a_shared_one() -> None:
    own = {"method": "FedAvg", "rounds": 3, "local_steps": 1}
    content = {"data": BASE["data"], "methods": [own]}
    assert make_plan(parse_experiment(content, "here")).entries[0].schedule == {"rounds": 3, "local_steps": 1}
    with pytest.raises(ConfigError, match=r"schedule\.rounds is missing"):
        make_plan(parse_experiment({**content, "methods": [{"method": "FedAvg", "local_steps": 1}]}, "here"))
    with pytest.raises(ConfigError, match="give one of labels_per_client, dirichlet, iid = true or by_group = true"):
        make_plan(parse_experiment({**content, "data": {"num_clients": 5}}, "here"))


# -- Your own models and data ---------------------------------------------------------------------------------


OWN = """
import torch
import wafl


def make_clients():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(4, 12, 3, generator=generator)
    return wafl.Federation.from_arrays([(x[i], (torch.arange(12) + i) % 3) for i in range(4)], bounds=(0.0, 1.0))


def build(clients):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    generator = torch.Generator().manual_seed(7)
    for value in model.parameters():
        value.data = torch.rand(value.shape, generator=generator)
    return model


def nothing(*_):
    return 3


def two(one, other):
    return one


class Inside:
    @staticmethod
    def make():
        return make_clients()


number = 3
"""
OWN_FILE = """
name = "own"
data.source = "{module}:make_clients"
model.kind = "{module}:build"
schedule = {{rounds = 2, local_steps = 1, learning_rate = 0.1}}
methods = [{{method = "FedAvg"}}]
attack.steps = 2
"""


@pytest.fixture
def own(tmp_path: Path, request: pytest.FixtureRequest) -> Generator[tuple[Path, str], None, None]:
    """A folder with a module, whose name no other test uses, and an experiment next to it."""
    module = "mine_" + re.sub(r"\W", "_", request.node.name)
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / f"{module}.py").write_text(OWN)
    (folder / "exp.toml").write_text(OWN_FILE.format(module=module))
    yield folder / "exp.toml", module
    sys.modules.pop(module, None)


def test_a_module_next_to_the_file_provides_model_and_data(
    own: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, module = own
    before = list(sys.path)
    assert invoke("run", str(path.relative_to(tmp_path))).exit_code == 0
    assert sys.path == before, "imports look elsewhere again"
    mine = sys.modules[module]
    clients, model = mine.make_clients(), mine.build(None)
    run = wafl.fit(model, clients, wafl.FedAvg(), rounds=2, local_steps=1, learning_rate=0.1)
    saved = wafl.load_run(tmp_path / "runs" / "own" / "fedavg", model=model)
    assert all(torch.equal(value, saved.params[name]) for name, value in run.params.items())


def test_a_function_inside_a_class_can_provide_the_data(own: tuple[Path, str]) -> None:
    path, module = own
    assert check(path, f"data.source={module}:Inside.make").exit_code == 0


@pytest.mark.parametrize("key", ["data.source", "model.kind"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:make", "cannot be imported: No module named 'no_such_module'"),
        ("{module}:no_such_function", "cannot be imported: "),
        ("{module}.sub:make", "cannot be imported: "),
        ("{module}:number", "is not a function"),
        ("{module}:nothing", "returned int, not a "),
        (".{module}:make", ""),
        ("..:make", ""),
        ("{module}:.", ""),
    ],
)
def test_a_function_that_provides_no_model_or_data_is_one_line(
    own: tuple[Path, str], key: str, name: str, message: str
) -> None:
    path, module = own
    wanted = {"data.source": "wafl.Federation", "model.kind": "torch.nn.Module"}[key]
    name = name.format(module=module)
    result = check(path, f"{key}={name}")
    assert_one_line(result, key, name, message + (wanted if message.endswith("not a ") else ""))


def test_a_model_that_does_not_fit_the_data_is_one_line(own: tuple[Path, str]) -> None:
    path, _ = own
    result = check(path, "data={num_clients=5, iid=true}")
    assert_one_line(result, "the model does not take examples of shape (1, 8, 8)")


def test_a_module_next_to_the_file_comes_before_one_of_the_same_name_elsewhere(
    own: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module of the same name elsewhere is not imported instead."""
    path, module = own
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / f"{module}.py").write_text("raise RuntimeError('the wrong one')")
    monkeypatch.syspath_prepend(elsewhere)
    assert check(path).exit_code == 0


def test_two_experiments_in_one_process_each_import_their_own_module(own: tuple[Path, str], tmp_path: Path) -> None:
    """Both modules have the same name."""
    path, module = own
    other = tmp_path / "other"
    other.mkdir()
    (other / f"{module}.py").write_text(OWN.replace("rand(4, 12, 3", "rand(6, 12, 3").replace("range(4)", "range(6)"))
    (other / "exp.toml").write_text(path.read_text())
    assert "4 clients" in check(path).stdout
    assert "6 clients" in check(other / "exp.toml").stdout


# -- Your own methods and parts -------------------------------------------------------------------------------


PARTS_MODULE = """
from dataclasses import dataclass

import wafl


def strong(strength=1.0, norm="2", steps=3):
    adversary = wafl.adversaries.wasserstein(gamma=1 / strength, norm=float(norm), steps=steps)
    return wafl.Method("strong", adversary, wafl.weights.uniform())


@dataclass(frozen=True)
class Half:
    keep: float = 0.5

    def initial_vectors(self, params):
        return {"last": params.clone()}

    def step(self, params, weights, replies, vectors):
        return self.keep * params + (1 - self.keep) * replies.params.mean(0), {"last": params}


def server(keep):
    return Half(keep)


def local(mu=0.1):
    return wafl.local.prox(mu)


def rule():
    return wafl.weights.fixed([1.0, 2.0, 3.0, 4.0, 5.0])


def nothing():
    return 3
"""


@pytest.fixture
def parts(tmp_path: Path, request: pytest.FixtureRequest) -> Generator[tuple[Path, str], None, None]:
    """A folder with a module of methods and parts, and its name."""
    module = "parts_" + re.sub(r"\W", "_", request.node.name)
    (tmp_path / f"{module}.py").write_text(PARTS_MODULE)
    yield tmp_path, module
    sys.modules.pop(module, None)


def trained(folder: Path, source: Path, method: dict[str, Any]) -> dict[str, wafl.Run]:
    """The runs of a study with one method, by their folders."""
    Study.create(parse_experiment({**BASE, "methods": [method]}, "here"), folder, source).run()
    return {str(path.parent.relative_to(folder)): wafl.load_run(path.parent) for path in folder.rglob("run.json")}


def assert_same(one: wafl.Run, other: wafl.Run) -> None:
    assert all(torch.equal(value, one.params[name]) for name, value in other.params.items())
    assert one.history.column("loss") == other.history.column("loss")
    assert torch.equal(one.client_weights, other.client_weights)


@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
def test_your_own_method_trains_what_its_function_returns_and_a_list_of_arguments_is_a_sweep(
    parts: tuple[Path, str], clients: wafl.Federation
) -> None:
    folder, module = parts
    options = {"strength": [0.5, 2.0], "norm": ["1", "inf"], "steps": 2}
    entry = {"method": f"{module}:strong", "options": options, "learning_rate": [0.1, 0.2]}
    runs = trained(folder / "study", folder, entry)
    strong = sys.modules[module].strong
    assert len(runs) == 16
    for strength in (0.5, 2.0):
        for norm in ("1", "inf"):
            method = strong(strength, norm, steps=2)
            grid = {"learning_rate": [0.1, 0.2], "seed": [0, 4]}
            for run in wafl.sweep(wafl.models.mlr(clients), clients, method, grid, **COMMON):
                point = run.settings["sweep"]
                name = f"strong-strength={strength}-norm={norm}-learning_rate={point['learning_rate']}"
                saved = runs[name + ("" if point["seed"] == 0 else "/seed-4")]
                assert_same(saved, run)
                assert saved.settings["sweep"] == {"strength": strength, "norm": norm, **point}
    rows = [json.loads(line) for line in (folder / "study" / "metrics.jsonl").read_text().splitlines()]
    assert {(row["method"], row["strength"], row["norm"]) for row in rows} == {
        ("strong", strength, norm) for strength in (0.5, 2.0) for norm in ("1", "inf")
    }


def test_your_own_server_local_step_and_client_weights_are_used(
    parts: tuple[Path, str], clients: wafl.Federation
) -> None:
    folder, module = parts
    runs = trained(
        folder / "study",
        folder,
        {
            "method": "WAFL",
            "gamma": 2.0,
            "server": {"kind": f"{module}:server", "options": {"keep": 0.25}},
            "local": {"kind": f"{module}:local"},
            "client_weights": f"{module}:rule",
        },
    )
    mine = sys.modules[module]
    method = wafl.WAFL(gamma=2.0, server=mine.Half(0.25), local=wafl.local.prox(0.1), client_weights=mine.rule())
    for run in wafl.sweep(wafl.models.mlr(clients), clients, method, {"seed": [0, 4]}, **COMMON):
        assert_same(runs["wafl" if run.settings["sweep"]["seed"] == 0 else "wafl/seed-4"], run)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"method": "{module}:none"}, "none.method = '{module}:none' cannot be imported"),
        ({"method": "no_such_module:make"}, "make.method = 'no_such_module:make' cannot be imported"),
        ({"method": "{module}:nothing"}, "returned int, not a wafl.Method"),
        ({"method": "{module}:wafl"}, "is not a function"),
        ({"method": "{module}:strong", "options": {"strenght": 1}}, "unexpected keyword argument 'strenght'"),
        ({"method": "{module}:strong", "options": {"strength": [1.0, -1.0]}}, "gamma=-1.0 must be positive"),
        ({"method": "{module}:strong", "options": {"strength": [1.0, 1.0]}}, "has a value twice"),
        ({"method": "{module}:strong", "options": {"strength": []}}, "a sweep is a list of numbers or plain words"),
        ({"method": "{module}:strong", "options": {"norm": ["a/b"]}}, "a sweep is a list of numbers or plain words"),
        ({"method": "{module}:strong", "options": {"norm": [[1], [2]]}}, "a sweep is a list of numbers or plain words"),
        ({"method": "{module}:strong", "options": {"seed": [1, 2]}}, "options.seed cannot be swept under this name"),
        ({"method": "{module}:server"}, "missing a required argument: 'keep'"),
        ({"method": "WAFL", "server": {"kind": "{module}:server"}}, "missing a required argument: 'keep'"),
        ({"method": "WAFL", "server": {"kind": "{module}:nothing"}}, "wafl: server=3 does not implement Server"),
        ({"method": "WAFL", "local": {"kind": "{module}:nothing"}}, "wafl: local=3 does not implement LocalStep"),
        ({"method": "WAFL", "local": {"kind": "{module}:none"}}, "local.kind = '{module}:none' cannot be imported"),
        ({"method": "WAFL", "client_weights": "{module}:nothing"}, "client_weights=3 does not implement ClientWeights"),
        ({"method": "WAFL", "client_weights": "{module}:none"}, "client_weights = '{module}:none' cannot be imported"),
        ({"method": "FedAdam", "server_learning_rate": 0.5}, "server_learning_rate=0.5"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_your_own_method_or_part_that_cannot_be_used_is_one_line(
    tmp_path: Path, parts: tuple[Path, str], method: dict[str, Any], message: str
) -> None:
    _, module = parts
    text = STARTER[: STARTER.index("[[methods]]")] + "[attack]\nsteps = 1\n[[methods]]\n"
    lines = (f"{name} = {as_toml(value)}" for name, value in method.items())
    path = write(tmp_path, text + "\n".join(lines).replace("{module}", module))
    assert_one_line(check(path), message.replace("{module}", module))


def test_your_own_method_is_changed_by_the_name_of_its_function(tmp_path: Path, parts: tuple[Path, str]) -> None:
    _, module = parts
    head = STARTER[: STARTER.index("[[methods]]")]
    path = write(tmp_path, f'{head}[[methods]]\nmethod = "{module}:strong"\n')
    result = check(path, "methods.strong.options.strength=[0.25, 0.5]", "methods.strong.rounds=3")
    assert result.exit_code == 0, result.stderr
    assert "strong: strong, 3 rounds, 4 runs, swept: strength" in result.stdout


def test_a_study_of_your_own_method_resumes_to_the_same_bits(tmp_path: Path, parts: tuple[Path, str]) -> None:
    folder, module = parts
    content = {**BASE, "methods": [{"method": f"{module}:strong", "options": {"strength": [0.1, 0.2]}}]}
    whole = Study.create(parse_experiment(content, "here"), tmp_path / "whole", folder)
    whole.run()

    def stop(_: Moment) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Study.create(parse_experiment(content, "here"), tmp_path / "study", folder).run([stop])
    sys.modules.pop(module)
    assert invoke("resume", str(tmp_path / "study")).exit_code == 0
    for path in (tmp_path / "whole").rglob("params.safetensors"):
        again = tmp_path / "study" / path.relative_to(tmp_path / "whole")
        assert again.read_bytes() == path.read_bytes()


# -- The page -------------------------------------------------------------------------------------------------


PAGE = Path(__file__).parents[2] / "docs" / "runs.md"


BLOCKS = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=["parts", "own", "tune", "unseen"])
def test_the_files_on_the_page_are_valid_experiments(block: str) -> None:
    experiment = parse_experiment(tomllib.loads(block), "docs/runs.md")
    methods = [method.method for method in experiment.methods]
    assert methods[-2:] in (["WAFL", "FedAvg"], ["mine:strong", "WAFL"], ["WAFL"])


def test_the_page_tunes_with_every_key_of_its_section() -> None:
    assert set(tomllib.loads(BLOCKS[2])["tune"]) == set(config.Tune.model_fields)


def test_the_page_lists_every_method_rule_server_and_local_step() -> None:
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    listed = {
        key: re.findall(r"`(\w+)`", rows[key]) for key in ("method", "client_weights", "server.kind", "local.kind")
    }
    assert listed == {
        "method": list(wafl.METHODS),
        "client_weights": list(RULES),
        "server.kind": [*OPTIMIZERS, *AGGREGATES],
        "local.kind": list(LOCAL_STEPS),
    }


def test_the_errors_on_the_page_are_those_of_the_reader() -> None:
    errors = re.findall(r"^    (experiment\.toml: .*)$", PAGE.read_text(), re.MULTILINE)
    content: dict[str, Any] = {
        "schedule": {"rounds": 1, "momentun": 0.9},
        "methods": [{"method": "WAFL", "norm": 3}, {"method": "FedAvg", "server": {"kind": "adm"}}],
    }
    with pytest.raises(ConfigError) as caught:
        parse_experiment(content, "experiment.toml")
    assert len(errors) == 3
    assert str(caught.value).splitlines() == errors
