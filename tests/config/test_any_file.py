"""Experiment files with random mistakes: never a traceback, and what a check accepts is run."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.config.commands import STARTER, as_toml, check, invoke, one_command
from tests.config.every_key import KEYS, SCHEMA, TABLES, Table, tried

__all__ = ["one_command"]

VALUES = st.sampled_from(
    ["-1", "0", "1", "3", "20", "0.5", "-0.5", "1e-300", "1e300", "1e400", "-1e400", "nan", "inf", "-inf",
     "9" * 30, "-" + "9" * 30, "true", "false", '""', '"a"', '"é☃\\u0000"', "'''a\nb'''", "[]", "[[]]", "[1, 'a']",
     "[0.1, 0.2]", "[nan]", "[5.0, inf]", "{}", "{a = 1}", "{method = 'WAFL'}", "1979-05-27", "07:32:00",
     "1979-05-27T07:32:00Z", "[" * 60 + "]" * 60, "{a = " * 40 + "1" + "}" * 40,
     '"inf"', "0x10", "1_000", '"value"', '"mlr"', '"a:b"', '"..:a"'],
)  # fmt: skip
KINDS = ["insert", "delete", "replace", "double", "drop", "swap", "value", "key", "key", "key", "nest"]
CHARACTERS = st.sampled_from(list("=[]{}\"'#.,-_+e0123456789\n \t\\\x00aé☃\ufeff\U0001f600"))


PLAIN_KEYS = [(name, key) for name, key in KEYS if "." not in TABLES[name].section]


def set_in(text: str, table: Table, name: str, value: str) -> str:
    """The text with a key set in its table, replacing one that is there."""
    header = f"[{table.section}]" if table.section else "\n"
    if table.section == "methods":
        header = f'[[methods]]\nmethod = "{table.start["method"]}"'
    head, match, tail = text.partition(header)
    if not match:
        return f"{text}\n{header}\n{name} = {value}\n"
    body, bracket, rest = tail.partition("\n[")
    body = re.sub(rf"\n{name} *=.*", "", body)
    return f"{head}{match}\n{name} = {value}{body}{bracket}{rest}"


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """The starter with a few random mistakes."""
    text = STARTER
    for _ in range(draw(st.integers(1, 4))):
        lines = text.split("\n")
        index = draw(st.integers(0, len(lines) - 1))
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
                text = "\n".join([*lines[:index], lines[index], *lines[index:]])
            case "drop":
                text = "\n".join([*lines[:index], *lines[index + 1 :]])
            case "swap":
                other = draw(st.integers(0, len(lines) - 1))
                lines[index], lines[other] = lines[other], lines[index]
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
                text = "\n".join([*lines[:index], header, *lines[index:]])
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


def some(count: int) -> Any:
    """A test of this many random files."""
    quiet = settings(
        max_examples=count, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None
    )
    return lambda test: quiet(given(data=mutated().filter(lambda data: not is_large(data)))(test))


@some(200)
def test_no_file_makes_a_traceback(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Exit status 0, or 2 and a message that says where."""
    path = tmp_path_factory.getbasetemp() / "exp.toml"
    path.write_bytes(data)
    result = check(path)
    assert result.exception is None or isinstance(result.exception, SystemExit), (result.exception, data)
    assert result.exit_code in (0, 2)
    if result.exit_code == 2:
        message = result.stderr.removeprefix("Error: ")
        keys = {key for _, key in KEYS} | {"methods", "method", *SCHEMA["properties"]}
        known = {"line ", "at end of document", "cannot be read", "unknown key", "clients with", "size", "weights"}
        assert any(word in message for word in known | keys), message


SMALL = ["schedule.rounds=1", "seeds=[0]", "attack.steps=1", "evaluation.attacked=[0.5]"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@some(10)
def test_what_check_accepts_is_run(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    path = folder / "exp.toml"
    path.write_bytes(data)
    changes = [word for change in SMALL for word in ("--set", change)]
    if invoke("config", "check", str(path), *changes).exit_code == 0:
        result = invoke("run", str(path), "--output", str(folder / "runs"), *changes)
        assert result.exit_code in (0, 3) or "diverged" in result.stderr, (result.stderr, data)
