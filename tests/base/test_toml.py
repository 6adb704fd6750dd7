"""TOML that would take a parser long is refused before it is parsed; all other TOML is read as Python reads it."""

from __future__ import annotations

import random
import time
import tomllib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wafl.base.json_types import DEPTH
from wafl.base.toml import LONGEST, MOST_PARTS, parsed_toml

DEEP = MOST_PARTS + 1
PARTS = ["a", "7", "-_x", '""', "''", '"a.b"', "'a.b'", r'"\""', r'"\\"', "'\\'", '"#"', "'\"'", '"\'"']
BEFORE = [
    "",
    'x = 1 # """ no text\n',
    'x = """a \\""" " b.c """"\n',
    'x = """""a"""""\n',
    "x = '''a\\'''''\ny = \"'''\"\n",
    'x = "\\\\"\ny = "\\""\n',
    "x = ['', \"\", 1.5, '''\n# ''',\n]\n",
]


def key(parts: int, seed: int) -> str:
    draw = random.Random(seed)
    return draw.choice([".", " . ", "\t."]).join(draw.choice(PARTS) for _ in range(parts))


FORMS = ["{} = 1", "[{}]", "[[{}]]", "v = {{{} = 1}}", "v = [{{z = 1, {} = 1}}]", 'v = {{z = """\n""", {} = 1}}']


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("form", FORMS)
def test_a_key_of_too_many_parts_is_refused_wherever_it_is(before: str, form: str) -> None:
    for seed in range(10):
        text = before + form.format(key(DEEP, seed))
        tomllib.loads(text)  # it is valid
        with pytest.raises(ValueError, match=f"a key of {DEEP} parts, more than {MOST_PARTS}"):
            parsed_toml(text)
        text = before + form.format(key(MOST_PARTS, seed))
        assert parsed_toml(text) == tomllib.loads(text)


def test_dots_that_are_in_no_key_are_no_parts() -> None:
    dots = "a.b." * 50
    for value in (f'"{dots}"', f"'{dots}'", f'"""{dots}"""', f"'''{dots}'''", f"1 # {dots}", "[" + "1.5, " * 50 + "]"):
        assert parsed_toml(f"x = {value}") == tomllib.loads(f"x = {value}")


@given(st.text("ab.=[]{}\"'#\\\n \t,1", max_size=60))
def test_any_text_is_read_or_refused_as_python_does_it(text: str) -> None:
    try:
        wanted = tomllib.loads(text)
    except ValueError:
        with pytest.raises(ValueError, match=r"."):
            parsed_toml(text)
    else:
        assert parsed_toml(text) == wanted


@pytest.mark.parametrize(
    "unit",
    ["a.", '"".', '"', '\\"', '"""\\', "'", "''''", "[", "{a=", "a", ".", "#", "a . ", '""""', "'''a''", "[[", "\\"],
)  # fmt: skip
def test_a_hundred_thousand_characters_of_anything_take_a_second(unit: str) -> None:
    """Parsed as they are, 120,000 characters of dotted keys take a minute and 6 GB."""
    for begin in ("", "x = ", 'x = "', 'x = """'):
        text, before = begin + unit * (10**5 // len(unit)), time.process_time()
        with suppress(ValueError):
            parsed_toml(text)
        assert time.process_time() - before < 1.0


def test_long_and_deep_texts_are_refused() -> None:
    with pytest.raises(ValueError, match=f"more than {LONGEST}"):
        parsed_toml("#" * (LONGEST + 1))
    with pytest.raises(ValueError, match="nested"):
        parsed_toml("x = " + "[" * (DEPTH + 1) + "]" * (DEPTH + 1))
    with pytest.raises(ValueError, match="nested too deeply"):
        parsed_toml("x = " + "[" * 10_000)
