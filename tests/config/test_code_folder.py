"""What runs of an experiment's folder is what was digested: no cache, no compiled file, no second module."""

from __future__ import annotations

import importlib
import py_compile
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wafl.base.errors import ConfigError, UntrustedError
from wafl.config.code_folder import CodeFolder
from wafl.config.own_code import imported, own_code

NAMES = ["mine:make"]
MINE = "from helper import SIZE\nimport pack.part\n\n\ndef make():\n    return SIZE + pack.part.SIZE\n"
EVIL = "raise SystemExit('this ran')\n"


@pytest.fixture(autouse=True)
def as_in_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    code = tmp_path / "code"
    (code / "pack").mkdir(parents=True)
    (code / "mine.py").write_text(MINE)
    (code / "helper.py").write_text("SIZE = 2\n")
    (code / "pack" / "__init__.py").write_text("")
    (code / "pack" / "part.py").write_text("SIZE = 3\n")
    return code


def compiled(text: str, file: Path) -> None:
    """Write compiled code that Python takes without looking at the source."""
    file.parent.mkdir(exist_ok=True)
    source = file.with_suffix(".txt")
    source.write_text(text)
    py_compile.compile(str(source), str(file), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    source.unlink()


def make(folder: Path) -> int:
    with own_code(folder, NAMES, trust=True):
        return imported("method", NAMES[0])()


@pytest.mark.parametrize("on_the_path", [False, True])
@pytest.mark.parametrize("module", ["mine", "helper", "pack/part", "pack/__init__"])
def test_a_planted_cache_is_neither_read_nor_refused(
    folder: Path, module: str, on_the_path: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, _, name = f"{folder.name}/{module}".rpartition("/")
    compiled(EVIL, folder.parent / package / "__pycache__" / f"{name}.{sys.implementation.cache_tag}.pyc")
    if on_the_path:  # as with `python -m wafl` in the folder itself
        monkeypatch.syspath_prepend(str(folder))
    assert make(folder) == 5


@pytest.mark.parametrize(
    "file",
    ["mine.pyc", "helper/__init__.pyc", "helper.cpython-311-x86_64-linux-gnu.so", "helper.pyd", "pack/part.so",
     "pack/part.pyc", "pack/deep/other.pyc", "site.pth", "MINE.PYC"],
)  # fmt: skip
def test_compiled_code_where_imports_look_is_refused_by_name(folder: Path, file: str) -> None:
    (folder / file).parent.mkdir(exist_ok=True)
    compiled(EVIL, folder / file)
    with pytest.raises(ConfigError, match="holds compiled code") as refused:
        make(folder)
    assert file in str(refused.value)
    assert "mine" not in sys.modules


@pytest.mark.parametrize("module", ["helper", "pack/part"])
def test_a_package_that_shadows_a_module_is_refused_by_name(folder: Path, module: str) -> None:
    (folder / module).mkdir()
    (folder / module / "__init__.py").write_text(EVIL)
    with pytest.raises(ConfigError, match=f"two modules called {module.replace('/', '.')}.*{module}/__init__.py"):
        make(folder)


def test_what_was_not_digested_is_not_found(folder: Path) -> None:
    for file in ("loose/evil.py", "pack/__pycache__/evil.py"):
        (folder / file).parent.mkdir()
        (folder / file).write_text(EVIL)
    with own_code(folder, NAMES, trust=True):
        for name in ("loose.evil", "pack.__pycache__.evil"):
            with pytest.raises(ModuleNotFoundError):
                importlib.import_module(name)


@pytest.mark.parametrize("late", ["late.py", "late/__init__.py", "late/part.py", "lib/late.py"])
def test_what_was_not_digested_is_not_found_by_python_either(
    folder: Path, late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `python -m wafl` in the folder itself, and where code puts a part of the folder on Python's path."""
    if late.endswith("part.py"):  # a folder without __init__.py is never digested
        (folder / late).parent.mkdir()
        (folder / late).write_text(EVIL)
    monkeypatch.setattr(sys, "path", [*sys.path])
    if "lib" in late:
        (folder / "helper.py").write_text(
            "import sys\nsys.path.insert(0, __file__.replace('helper.py', 'li' 'b'))\nSIZE=2\n"
        )
    else:
        monkeypatch.chdir(folder)
        sys.path.insert(0, "")
    name = "late.part" if late.endswith("part.py") else "late"
    (folder / "mine.py").write_text(f"import helper\n\n\ndef make():\n    import {name}\n")
    with own_code(folder, NAMES, trust=True):
        if name == "late":
            (folder / late).parent.mkdir(exist_ok=True)
            (folder / late).write_text(EVIL)
        with pytest.raises(ImportError, match=r"late\S* of .* was not read before the code ran"):
            imported("method", NAMES[0])()


def test_libraries_inside_the_folder_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment, or an installation that can be edited, may lie in the folder of an experiment."""
    (folder / ".venv").mkdir()
    (folder / ".venv" / "library.py").write_text("SIZE = 4\n")
    monkeypatch.syspath_prepend(str(folder / ".venv"))
    (folder / "mine.py").write_text("from library import SIZE\n\n\ndef make():\n    return SIZE\n")
    assert make(folder) == 4


def test_the_bytes_that_run_are_those_that_were_read(folder: Path) -> None:
    code = CodeFolder(folder)
    for file in ("mine.py", "helper.py", "pack/part.py"):
        (folder / file).write_text(EVIL)
    with code.importable(["mine"]):
        assert imported("method", NAMES[0])() == 5
    assert code.digest(NAMES) != CodeFolder(folder).digest(NAMES)


@pytest.mark.parametrize("in_folder", [True, False])
def test_names_that_spell_out_trusted_code_are_not_trusted(folder: Path, tmp_path: Path, in_folder: bool) -> None:
    """Otherwise, trust in a module with ``os:system`` in a line of its text would run that without a question."""
    (folder / "helper.py").write_text('"""\nos:system\n"""\nSIZE = 2\n')
    assert make(folder) == 5
    files = [folder / name for name in ("helper.py", "mine.py", "pack/__init__.py", "pack/part.py")]
    kept = tmp_path / "other"
    kept.mkdir()
    spelled = NAMES[0]
    for file in files:
        text = file.read_text()
        spelled += f"\n{file.relative_to(folder)} {len(text)}\n{text}"
    with pytest.raises(UntrustedError), own_code(kept if in_folder else None, spelled.split("\n"), trust=False):
        pass


def test_a_module_that_changed_runs_anew_with_its_helpers(folder: Path) -> None:
    assert make(folder) == 5
    (folder / "helper.py").write_text("SIZE = 20\n")
    assert make(folder) == 23


def test_a_folder_of_modules_inside_a_package_is_found(folder: Path) -> None:
    (folder / "pack" / "deep").mkdir()
    (folder / "pack" / "deep" / "more.py").write_text("SIZE = 7\n")
    (folder / "mine.py").write_text("from pack.deep.more import SIZE\n\n\ndef make():\n    return SIZE\n")
    assert make(folder) == 7


def test_a_name_does_not_lead_out_through_what_a_module_has_imported(folder: Path) -> None:
    (folder / "mine.py").write_text("import os\n")
    with own_code(folder, ["mine:os.getcwd"], trust=True), pytest.raises(ConfigError, match="function of os"):
        imported("method", "mine:os.getcwd")
