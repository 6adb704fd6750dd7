"""An experiment file: what it may say, how its mistakes are reported, and that it trains what it says."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import wafl
from tests.config.commands import STARTER, assert_one_line, check, invoke, one_command, write
from tests.config.every_key import ENDS, KEYS, LEAST, SCHEMA, TABLES, Table, conforms, tried
from wafl.base.errors import ConfigError
from wafl.base.options import Choice, Count, EachRound, Listed, Option, Range, Seed, options_of
from wafl.config import experiment as config
from wafl.config.method_keys import PARTS
from wafl.config.read import apply_change, parse_experiment, read_experiment
from wafl.local import LOCAL_STEPS
from wafl.parts.schedule import Schedule
from wafl.servers import AGGREGATES, OPTIMIZERS
from wafl.train.privacy.mechanism import Privacy
from wafl.train.trust.admission import Tolerance
from wafl.train.trust.caps import Caps
from wafl.train.trust.faults import Faults
from wafl.weights import RULES

__all__ = ["one_command"]

NAN, INF = math.nan, math.inf


# -- Every key ------------------------------------------------------------------------------------------------


SLOTS: dict[str, Mapping[str, Any]] = {
    "client_weights": RULES, "server": {**OPTIMIZERS, **AGGREGATES}, "local": LOCAL_STEPS, "optimizer": OPTIMIZERS,
}  # fmt: skip
OPTIONS: dict[str, Any] = {
    "Schedule": Schedule,
    "Faults": Faults,
    "Tolerance": Tolerance,
    "Caps": Caps,
    "Privacy": Privacy,
    **{name: preset.options for name, preset in wafl.METHODS.items()},
    **{f"{slot}_{kind}": part for slot, kinds in SLOTS.items() for kind, part in kinds.items()},
}
"""The dataclasses with the options that are keys of a file, by the names of their tables in the schema."""


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
    assert {key for key, option in options_of(OPTIONS[name]).items() if option.plain} - {"seed"} <= keys.keys()
    for key, option in own_options(name).items():
        shared = TABLES[name].section in ("schedule", "methods") or "." in TABLES[name].section
        assert keys[key]["description"] == option.doc
        assert keys[key]["default"] == (None if shared else option.default)


@pytest.mark.parametrize(("name", "key"), DERIVED, ids=map(".".join, DERIVED))
def test_the_schema_of_an_option_has_its_declared_limits(name: str, key: str) -> None:
    option, schema = own_options(name)[key], TABLES[name].keys[key]
    expected, single = declared(option), schema
    for union in ("anyOf", "oneOf"):
        branches = [branch for branch in single.get(union) or () if branch != {"type": "null"}]
        if branches and single != expected:
            single = {union: branches} if {union: branches} == expected else branches[0]
    if expected is not None:
        assert {
            word: value for word, value in single.items() if word not in ("title", "description", "default")
        } == expected


LOOSE = {
    "seeds", "norm", "client_weights", "center", "cost_matrix", "bounds", "space", "model.kind", "model.loss", "sizes",
    "radius", "power", "certified_norm", "questions.radii", "questions.grid", "questions.gammas", "questions.score",
}  # fmt: skip
"""Keys of which the schema says less than the reader checks, so that a value may fit the schema alone."""
TYPES = {"number": "number", "integer": "integer", "string": "string", "boolean": "boolean", "array": "list"}


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
    schema, path = table.keys[key], re.escape(table.path_of(key))
    loose = key in LOOSE or table.path_of(key) in LOOSE
    for value in tried(schema):
        content = table.holding(**{key: value})
        try:
            parse_experiment(content, "exp.toml")
        except ConfigError as error:
            text = str(error)
            assert loose or not conforms(value, schema), (value, text)
            assert all(re.match(rf"exp\.toml: (unknown key )?{path}\b", line) for line in text.split("\n")), text
            assert isinstance(value, list) or "\n" not in text, text
            assert not any(word in text.lower() for word in ("literal[", "constrained", "tagged-union")), text
            assert loose or reason(value, schema) in text, (value, text)
        else:
            assert conforms(value, schema), "an editor must not mark a valid file"
            accepted += 1
    needs_others = table.path_of(key) == "questions.gammas"  # one for each radius above 0
    assert accepted or needs_others or table.keys[key].get("$ref") or "$ref" in json.dumps(schema)


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
    ("path", "value", "message"),
    [
        *(("methods.0.norm", value, "must be 1, 2 or inf") for value in (3, 0, -2, "two", True, NAN)),
        *(("attack.norm", value, "must be 1, 2 or inf") for value in (3, True, NAN)),
        *(("methods.0.power", value, "must be 1 or 2") for value in (3, 0, "2", True)),
        ("methods.0.radius", "large", "must be a number or 'auto'"),
        ("methods.0.radius", 0.0, "greater than 0"),
        ("methods.0.bounds", [1.0], "at least 2"),
        ("methods.0.bounds", [0, 1, 2], "at most 2"),
        ("methods.0.bounds", "01", "must be a list of two numbers, 'data' or 'none'"),
        ("methods.0.cost_matrix", "round", "must be 'clients', a list of one number per feature"),
        ("methods.0.cost_matrix", [1.0, "a"], "must be 'clients', a list of one number per feature"),
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
        *(("model.kind", value, "'cnn' or 'lipschitz', or 'module:function'") for value in ("clr", 3, ["mlr"])),
        *(("model.loss", value, "unknown loss") for value in ("crossentropy", "margin(1)")),
        ("model.loss", "margin(1, 0)", "temperature=0.0 must be"),
        ("data.sizes", [-1.0, 2.0], "greater than or equal to 0"),
        ("tune.space", {"gamma": 3}, "dictionary"),
        ("tune.space", {"gamma": {"low": 1.0}}, "gamma.high is missing"),
        ("tune.space", {"gamma": {"low": -1.0, "high": 1.0}}, "gamma.low = -1.0"),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_the_error_of_a_value_that_only_the_reader_checks_says_what_is_allowed(
    path: str, value: Any, message: str
) -> None:
    name = {"methods": "WAFL", "attack": "Attack", "tune": "Tune", "model": "Model", "data": "Data"}
    table = TABLES[name.get(path.split(".")[0], "Experiment")]
    with pytest.raises(ConfigError) as caught:
        parse_experiment(table.holding(**{path.split(".")[-1]: value}), "exp.toml")
    text = str(caught.value)
    assert text.startswith(f"exp.toml: {path}"), text
    assert message in text, text
    assert "\n" not in text, text


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_the_error_for_a_misspelled_key_suggests_the_closest_name(table: Table) -> None:
    for key in table.keys:
        for typo in (key + key[-1], key[0] + key[2:] if len(key) > 3 else key + "x", key.capitalize()):
            with pytest.raises(ConfigError) as caught:
                parse_experiment(table.holding(**{typo: 1}), "exp.toml")
            assert str(caught.value) == f"exp.toml: unknown key {table.path_of(typo)}: did you mean {key}?"


def test_the_error_for_a_misspelled_end_of_a_searched_range_suggests_the_closest_name() -> None:
    content = TABLES["Tune"].holding(space={"gamma": {"low": 1.0, "high": 2.0, "hig": 3.0}})
    with pytest.raises(ConfigError, match=r"^exp\.toml: unknown key tune\.space\.gamma\.hig: did you mean high\?$"):
        parse_experiment(content, "exp.toml")


@pytest.mark.parametrize("name", TABLES)
def test_the_error_for_a_key_unlike_any_other_lists_all_keys(name: str) -> None:
    """``value`` and ``list`` are what the two branches of a swept value are called internally."""
    for unknown in ("zzzzz", "value", "list"):
        path = re.escape(TABLES[name].path_of(unknown))
        with pytest.raises(ConfigError, match=rf"^exp\.toml: unknown key {path}: ") as caught:
            parse_experiment(TABLES[name].holding(**{unknown: 1}), "exp.toml")
        if unknown == "zzzzz":
            assert set(str(caught.value).split("there are ")[1].split(", ")) >= TABLES[name].keys.keys()


def test_a_value_in_place_of_a_section_is_one_line() -> None:
    for section in (table.section for table in TABLES.values() if table.section and "methods" not in table.section):
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
        ([{"method": "FedPMG"}], "did you mean FedPGM?"),
        ([{"method": "FedAvg"}, {"method": "FedAvg"}], "two methods are called 'fedavg': give each its own name"),
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
    keys = [
        "seeds = 'all'",
        "unknown key dta: did you mean data?", "schedule.rounds = 0", "schedule.learning_rate.1 = -1.0",
        "unknown key methods.0.gama: did you mean gamma?", "methods.1.name = 'a b'",
        "faults: the rates of the faults sum to 1.2",
    ]  # fmt: skip
    assert len(lines) == len(keys)
    for key in keys:
        assert any(key in line for line in lines), key


# -- The file -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("name = \n", 1),
        ("seeds = [0]\nname = digits\n", 2),
        ("[data]\nnum_clients = 3\nnum_clients = 4\n", 3),
        ("a = 1\nb = 2\nc = x'\n", 3),
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
        (["methods.wafl={method='WAFL', radius='auto'}", "data={num_clients=3, iid=true}"], "at least 4 of them"),
        (["methods.wafl.weights_step=0.1"], "weights_step"),
        (["methods.fedavg.client_weights=[1.0]"], "1 client weights for 20 clients"),
        (
            ["data.preprocess=zscore", "attack.kind=autoattack"],
            "use data that declare theirs (preprocess 'unit' or 'symmetric')",
        ),
        (["data.test_fraction=0.0"], "test_fraction"),
        (["early_stopping.metric=accuracy"], "evaluation.every"),
        (["methods.wafl.name=checkpoint"], "checkpoint"),
        (["methods.wafl.name=FedAvg"], "fedavg"),
    ],
    ids=lambda value: "; ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_check_reports_what_cannot_be_trained(tmp_path: Path, changes: list[str], message: str) -> None:
    """So a study fails before its folder is made, and not after it has been trained."""
    result = check(write(tmp_path, STARTER), *changes)
    assert_one_line(result)
    assert message.lower() in result.stderr.lower()


def test_check_says_what_would_be_trained_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, STARTER)
    result = check(path, "methods.fedavg.learning_rate=[0.1, 0.2, 0.3]", "methods.fedavg.rounds=7")
    assert result.exit_code == 0, result.stderr
    assert "20 clients" in result.stdout
    assert "wafl: WAFL, 30 rounds, 4 runs, swept: gamma" in result.stdout
    assert "fedavg: FedAvg, 7 rounds, 6 runs, swept: learning_rate" in result.stdout
    assert "is valid" in result.stdout
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
        ("schedule.learning_rate=[0.1, 0.2]", lambda c: c["schedule"]["learning_rate"] == [0.1, 0.2]),
        ("name=other", lambda c: c["name"] == "other"),
        ("seeds=[3, 4, 5]", lambda c: c["seeds"] == [3, 4, 5]),
        ("seeds.1=9", lambda c: c["seeds"] == [0, 9]),
        ("methods.0.gamma=7.0", lambda c: c["methods"][0]["gamma"] == 7.0),
        ("methods.wafl.gamma=7.0", lambda c: c["methods"][0]["gamma"] == 7.0),
        ("methods.fedavg.rounds=7", lambda c: c["methods"][1]["rounds"] == 7 and "rounds" not in c["methods"][0]),
        ("methods=[{method='DRFA'}]", lambda c: c["methods"] == [{"method": "DRFA"}]),
        ("methods.0.gamma.1=9.0", lambda c: c["methods"][0]["gamma"] == [1.0, 9.0]),
        ("faults={dropout=0.1, nan=0.2}", lambda c: c["faults"] == {"dropout": 0.1, "nan": 0.2}),
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
        ("rounds=3", "exp.toml: unknown key rounds: it belongs in [schedule]"),
        ("schedule.epsilon=3", "exp.toml: unknown key schedule.epsilon: it belongs in [attack]"),
        ("data.checkpoint_every=3", "unknown key data.checkpoint_every: it belongs at the top of the file, before"),
        ("schedule.round=3", "exp.toml: unknown key schedule.round: did you mean rounds?"),
        ("schedule.rounds=many", "exp.toml: schedule.rounds = 'many': should be a valid integer"),
        ("schedule.learning_rate=0.1,0.2", "exp.toml: schedule.learning_rate = '0.1,0.2': should be a valid number"),
        ("schedule.rounds.more=3", "schedule.rounds is a value and has no key 'more'"),
        ("methods.2.gamma=1.0", "no entry '2'; there are 2: wafl, fedavg"),
        ("methods.drfa.gamma=1.0", "no entry 'drfa'; there are 2: wafl, fedavg"),
        ("seeds.5=1", "no entry '5'; there are 2"),
        ("a=" + "[" * 5000, "--set"),
        ("schedule.rounds=" + "9" * 5000, "schedule.rounds"),
    ],
    ids=lambda value: value[:40],
)
def test_a_change_that_cannot_be_made_is_one_line(tmp_path: Path, change: str, message: str) -> None:
    path = write(tmp_path, STARTER)
    assert_one_line(check(path, change), message)
    assert path.read_text() == STARTER


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
    text = invoke("config", "schema").stdout
    printed = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert printed == json.loads(json.dumps(SCHEMA).replace(": Infinity", ': "inf"'))


def test_the_schema_describes_every_table_and_has_no_loose_ends() -> None:
    assert SCHEMA["type"] == "object"
    assert SCHEMA["required"] == ["methods"]
    references = set(re.findall(r'"#/\$defs/(\w+)"', json.dumps(SCHEMA)))
    assert references == set(SCHEMA["$defs"]) == (set(TABLES) | {"Between"}) - {"Experiment"}
    for model in (SCHEMA, *SCHEMA["$defs"].values()):
        assert model["additionalProperties"] is False


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


def test_the_errors_on_the_page_are_those_of_the_reader() -> None:
    errors = re.findall(r"^    (experiment\.toml: .*)$", PAGE.read_text(), re.MULTILINE)
    content: dict[str, Any] = {
        "schedule": {"rounds": 1, "momentun": 0.9},
        "methods": [{"method": "WAFL", "norm": 3}],
        "model": {"kind": "cn"},
    }
    with pytest.raises(ConfigError) as caught:
        parse_experiment(content, "experiment.toml")
    assert len(errors) == 3
    assert str(caught.value).splitlines() == errors


def test_an_option_that_was_renamed_is_read_by_its_old_name() -> None:
    old, new = ({"methods": [{"method": "WAFL", name: "clients"}]} for name in ("shape", "cost_matrix"))
    assert parse_experiment(old, "file") == parse_experiment(new, "file")
    both = {"methods": [{"method": "WAFL", "shape": "clients", "cost_matrix": "clients"}]}
    with pytest.raises(ConfigError, match="shape"):
        parse_experiment(both, "file")
