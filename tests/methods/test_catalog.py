"""The list of methods in words: complete, true to the methods, and the same on the page and in the command."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tools.methods_page import LIST, PAGE, STUB, catalog, entry, methods_list, page, stub
from typer.testing import CliRunner

import wafl
from wafl.base.options import options_of
from wafl.cli.main import app
from wafl.config.known import known_methods, range_of


def test_the_page_is_what_the_list_of_methods_says() -> None:
    assert PAGE.read_text() == page(), "run .venv/bin/python tools/methods_page.py"
    assert LIST.read_text() == methods_list(), "run .venv/bin/python tools/methods_page.py"
    assert STUB.read_text() == stub(), "run .venv/bin/python tools/methods_page.py"


def test_a_new_method_gets_its_line_among_the_public_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place that ruff asks for: names in capitals come first."""
    monkeypatch.setitem(wafl.METHODS, "FedZ", wafl.FedProx)
    monkeypatch.setitem(wafl.METHODS, "ZFED", wafl.FedProx)
    lines = stub().splitlines()
    assert set(lines) - set(STUB.read_text().splitlines()) == {
        f"from .methods.averaging import {name} as {name}" for name in ("FedZ", "ZFED")
    }
    family = [line.split()[3] for line in lines if line.startswith("from .methods.averaging ")]
    assert family == ["SCAFFOLD", "ZFED", "FedAvg", "FedProx", "FedSAM", "FedZ"]


def test_the_options_that_the_command_knows_are_those_of_the_methods() -> None:
    for name, known in known_methods().items():
        for option in entry(name).options:
            read = known.options[option.name]
            assert replace(read, kind=None) == replace(option, kind=None, tunable=None)


def test_every_method_has_a_summary_a_paper_an_equation_and_a_use() -> None:
    entries = catalog()
    assert [each.name for each in entries] == list(wafl.METHODS)
    for each in entries:
        assert re.search(r"\b(19|20)\d\d\b", each.about.paper), f"{each.name}: no year"
        assert each.about.equation.count("{") == each.about.equation.count("}"), each.name
        for text in (each.summary, each.about.use):
            assert text[0].isupper(), each.name
            assert text.endswith("."), each.name
        assert {option.name for option in each.options} <= set(options_of(wafl.METHODS[each.name].options))


@pytest.mark.parametrize(
    ("name", "moves", "sends"),
    [
        ("FedAvg", "nothing", "size, model, loss"),
        ("WAFL", "examples", "size, model, loss"),
        ("AFL", "client weights", "model, loss"),
        ("DRFA", "client weights", "model, snapshot, then loss"),
        ("QFFL", "client weights", "size, loss, then model"),
        ("ScaffPD", "client weights, local steps", "loss, gradient, then model"),
        ("SCAFFOLD", "local steps", "size, model, control, loss"),
        ("FedAdam", "the server's step", "size, model, loss"),
    ],
)
def test_what_a_method_moves_and_sends_follows_from_its_parts(name: str, moves: str, sends: str) -> None:
    assert (entry(name).moves, entry(name).sends) == (moves, sends)


def test_the_range_of_an_option_is_that_of_its_limits() -> None:
    ranges = {option.name: range_of(option) for option in (*entry("WAFL").options, *entry("CVaR").options)}
    assert ranges["gamma"] == "positive and finite"
    assert ranges["norm"] == "1, 2, inf"
    assert ranges["alpha"] == "in [0, 1)"
    assert ranges["steps"] == "whole, at least 1"


def test_the_command_lists_every_method_and_all_about_one() -> None:
    listed = CliRunner().invoke(app, ["methods"], env={"COLUMNS": "200"})
    assert listed.exit_code == 0
    assert re.findall(r"^ ?(\w+) ", listed.output, re.MULTILINE)[1:] == list(wafl.METHODS)
    assert "Mohri, Sivek and Suresh, ICML 2019" in listed.output
    one = CliRunner().invoke(app, ["methods", "qffl"], env={"COLUMNS": "200"}).output
    assert "q" in re.findall(r"^ ?(\w+) ", one, re.MULTILINE)
    assert '"Fair resource allocation in federated learning", ICLR 2020' in one
    unknown = CliRunner().invoke(app, ["methods", "zzz"])
    assert unknown.exit_code != 0
    assert "unknown method 'zzz': there are WAFL, " in unknown.output
