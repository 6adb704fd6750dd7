"""A method or a part is named in its own file, its own test and one list: everything else is derived from the lists."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

import wafl
from wafl import methods
from wafl.methods.preset import Preset

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "docs", "tools", "benchmarks", "examples")
PAGES = {".md", ".html", ".png", ".svg"}
"""Pages are generated, or prose."""
GENERATED = ROOT / "src/wafl/config/methods.json"
SHARED = {
    Path(__file__),
    Path(__file__).with_name("test_small_references.py"),
    ROOT / "src/wafl/__init__.pyi",
    ROOT / "src/wafl/methods/__init__.py",
    GENERATED,
}
"""Where every method is named, with a reference or where it comes from."""


def files() -> list[Path]:
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file())
    return [path for path in paths if path.suffix not in PAGES and "__pycache__" not in path.parts]


def part_of(preset: Preset[...]) -> type:
    """The part that makes the method what it is."""
    method = preset()
    plain = wafl.FedAvg()
    (part,) = (
        getattr(method, slot)
        for slot in ("objective", "client_weights", "server", "local")
        if getattr(method, slot) != getattr(plain, slot)
    )
    return type(part)


@pytest.mark.parametrize(
    ("preset", "test"),
    [
        (wafl.FedSR, "test_simple_representation.py"),
        (wafl.REx, "test_reweighted.py"),
        (wafl.FedGMA, "test_robust_servers.py"),
    ],
    ids=["an objective", "a rule for the client weights", "a server"],
)
def test_a_method_and_its_part_are_named_in_their_own_files_and_one_list(preset: Preset[...], test: str) -> None:
    part = part_of(preset)
    module = Path(str(sys.modules[part.__module__].__file__))
    family = Path(str(sys.modules[preset.options.__module__].__file__))
    allowed = {module, module.with_name("__init__.py"), module.parents[1] / "__init__.py", family, *SHARED}
    words = rf"\b({preset.__name__}|{preset.__name__.lower()}|{part.__name__}|{re.escape(part.__module__)})\b"
    named = {path for path in files() if re.search(words, path.read_text(errors="ignore"))}
    others = {path for path in named - allowed if path.name != test and path.parent != module.parent}
    elsewhere = {str(path.relative_to(ROOT)) for path in others}
    assert not elsewhere, f"derive these from wafl.METHODS or from the list of the part's folder: {elsewhere}"
    assert {module, family} <= named


def test_every_preset_is_in_the_list() -> None:
    """A preset that is missing there would be in no page and in no experiment file."""
    families = [import_module(f"wafl.methods.{each.name}") for each in iter_modules(methods.__path__)]
    presets = {preset.__name__ for family in families for preset in vars(family).values() if isinstance(preset, Preset)}
    assert presets == set(wafl.METHODS)
