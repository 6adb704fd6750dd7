"""The code on the pages works: their Python runs, and their commands exist with those options.

Python blocks run in order and share the page's namespace; each section begins with what ``BEFORE`` gives it. They run
smaller than they are printed, by the rules of ``SMALLER``, and on stand-ins for the real data sets: a few random images
under the same names. Calls in the text such as ``wafl.WAFL(radius=0.3)`` run too, if the page has defined what they
need. A block listed in ``NOT_RUN`` is compiled, and its ``wafl.`` names are looked up.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
import textwrap
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, reduce
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from tools.notebook import notebook
from typer.core import TyperGroup

import wafl
from research.__main__ import TOOLS
from research.catalog import EXPERIMENTS
from tests.cli.commands import click
from wafl.cli.main import app

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")],
    key=lambda page: page.relative_to(ROOT),
)

SMALLER = [
    (r"\brounds=\d+", "rounds=2"),
    (r"\bnum_clients=\d+", "num_clients=10"),
    (r"\bsample=\d+", "sample=20"),
    (r"\btrials=\d+", "trials=2"),
    (r"\brange\(\d+\)", "range(2)"),
]
"""What is printed, and what runs."""

BEFORE = {
    "README.md": "",
    "docs/tour.md": """
        import torch
        x0, x1, x2, x_new = torch.rand(4, 12, 1, 28, 28)
        y0 = y1 = y2 = torch.arange(12) % 10
        my_module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
        clients = wafl.load_dataset("mnist").partition(num_clients=10, iid=True)
        model = wafl.models.mlr(clients)
        run = wafl.fit(model, clients, wafl.WAFL(gamma=1.0), rounds=1, local_steps=1)
    """,
    "docs/data.md": """
        import torch
    """,
    "docs/guarantees.md": """
        clients = wafl.load_dataset("digits").partition(num_clients=40, labels_per_client=3, seed=0)
        seen, unseen = clients.hold_out(0.5, seed=0)
        run = wafl.fit(wafl.models.mlr(seen), seen, wafl.FedAvg(), rounds=1, local_steps=1)
    """,
    "docs/prediction-sets.md": """
        from sklearn.datasets import load_iris
        from sklearn.utils import shuffle
        X, y = shuffle(*load_iris(return_X_y=True), random_state=0)
        clients = wafl.load_dataset("digits").partition(num_clients=12, iid=True)
        seen, unseen = clients.hold_out(0.5)
        calibration, test = unseen.set_apart([0, 1])
        run = wafl.fit(wafl.models.mlr(seen), seen, wafl.WAFL(radius=0.3), rounds=1, local_epochs=1)
        sets = wafl.prediction_sets(run, calibration, coverage=0.7)
    """,
    "docs/tabular.md": "",
    "docs/tutorial.md": "",
}
"""What the sections of a page take for granted; pages that are not here get ``USUAL``."""

USUAL = """
    clients = wafl.load_dataset("digits").partition(num_clients=4, labels_per_client=3, seed=0)
    model = wafl.models.mlr(clients)
    run = wafl.fit(model, clients, wafl.WAFL(gamma=1.0), rounds=1, local_steps=1)
    fedavg_run = wafl.fit(model, clients, wafl.FedAvg(), rounds=1, local_steps=1)
"""

NOT_RUN = {
    "wafl.flower.train(model, loader, message, context)": "one line each of a Flower server and a Flower client",
    "algorithm.ask(state)": "the loop in outline: the engine has it for many runs at once",
}
"""Part of a block, and why the block is compiled only."""
if importlib.util.find_spec("foolbox") is None:
    NOT_RUN["import foolbox"] = "it is no dependency"
if importlib.util.find_spec("seglearn") is None:
    NOT_RUN['wafl.load_dataset("smartwatch")'] = "its data come with wafl-learn[natural]"


@dataclass(frozen=True)
class Block:
    """Code on a page; ``language`` is "" if it is indented instead of fenced."""

    page: str
    section: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def blocks() -> list[Block]:
    return [block for page in PAGES for block in read_blocks(page)]


def read_blocks(page: Path) -> Iterator[Block]:
    """Fenced blocks, and indented ones, which begin after an empty line."""
    name, lines = str(page.relative_to(ROOT)), page.read_text().splitlines()
    index, section = 0, ""
    while index < len(lines):
        begin, line = index, lines[index]
        index += 1
        if line.startswith("## "):
            section = line
        if line.strip().startswith("```"):
            while lines[index].strip() != "```":
                index += 1
            text = "\n".join(lines[begin + 1 : index])
            yield Block(name, section, begin + 2, line.strip().removeprefix("```").strip(), textwrap.dedent(text))
            index += 1
        elif line.startswith("    ") and not lines[begin - 1].strip():
            while index < len(lines) and (lines[index].startswith("    ") or not lines[index].strip()):
                index += 1
            yield Block(name, section, begin + 1, "", textwrap.dedent("\n".join(lines[begin:index])))


def calls_in_the_text(page: str) -> Iterator[Block]:
    """Whole calls of ``wafl`` between backticks; one with dots for what is left out is none."""
    inside = {block.line + row for block in blocks() if block.page == page for row in range(block.text.count("\n") + 1)}
    section = ""
    for number, line in enumerate((ROOT / page).read_text().splitlines(), start=1):
        section = line if line.startswith("## ") else section
        for code in re.findall(r"`(wafl\.[^`]+\))`", line) if number not in inside else ():
            if "..." not in code and not code.startswith("wafl.flower"):
                yield Block(page, section, number, "call", code)


def python_blocks(page: str) -> list[Block]:
    return [block for block in blocks() if block.page == page and block.language == "python"]


def reason_not_to_run(block: Block) -> str | None:
    return next((why for part, why in NOT_RUN.items() if part in block.text), None)


def compiled(block: Block, text: str) -> Any:
    """Compile a block as a reader's file: with the line numbers of its page, and without this file's __future__."""
    tree = ast.parse("\n" * (block.line - 1) + text, block.page)
    return compile(tree, block.page, "exec", dont_inherit=True)


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stand-ins for the data sets that pages name."""
    folder, random = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for name, shape in (("mnist", (28, 28)), ("usps", (16, 16)), ("svhn", (32, 32, 3))):
        arrays: dict[str, Any] = {}
        for part, count in (("train", 200), ("test", 40)):
            arrays[f"x_{part}"] = random.integers(0, 256, (count, *shape), dtype=np.uint8)
            arrays[f"y_{part}"] = np.arange(count) % 10
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


PAGES_WITH_PYTHON = [
    name
    for name in (str(page.relative_to(ROOT)) for page in PAGES)
    if python_blocks(name) or (name != "CHANGELOG.md" and any(calls_in_the_text(name)))
]


@pytest.mark.parametrize("page", PAGES_WITH_PYTHON)
def test_the_python_of_a_page_runs(
    page: str, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAFL_DATA", str(data_folder))
    monkeypatch.chdir(tmp_path)
    warnings.simplefilter("ignore", wafl.ConcavityWarning)  # two rounds on noise may well be
    warnings.filterwarnings("ignore", "Please import `gaussian_filter`")  # foolbox does not
    namespace: dict[str, Any] = {"wafl": wafl}
    section = None
    for block in sorted([*python_blocks(page), *calls_in_the_text(page)], key=lambda block: block.line):
        if block.section != section:
            exec(textwrap.dedent(BEFORE.get(page, USUAL)), namespace)
            section = block.section
        if block.language == "call" and not names_in(block.text) <= namespace.keys():
            check_names(block)
        elif reason_not_to_run(block) is None:
            small = reduce(lambda text, rule: re.sub(*rule, text), SMALLER, block.text)
            exec(compiled(block, small), namespace)
        else:
            compiled(block, "def page():\n" + textwrap.indent(block.text, "    "))  # some return
            check_names(block)


def names_in(code: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}


def check_names(block: Block) -> None:
    """Every ``wafl.a.b`` is there, if what it needs is installed."""
    for name in re.findall(r"\bwafl(?:\.\w+)+", block.text):
        if name.startswith("wafl.flower") and importlib.util.find_spec("flwr") is None:
            continue
        result: Any = wafl
        for part in name.split(".")[1:]:
            assert hasattr(result, part), f"{block}: there is no {name}"
            result = getattr(result, part)


def test_every_block_that_is_not_run_is_on_a_page() -> None:
    for part in NOT_RUN:
        assert any(part in block.text for block in blocks()), f"NOT_RUN lists what no page has: {part}"


# Commands


@dataclass(frozen=True)
class Command:
    """A command in a block, or in the text: there it may leave out its arguments."""

    where: str
    words: tuple[str, ...]
    whole: bool

    def __str__(self) -> str:
        return f"{self.where} {' '.join(self.words)}"


PROGRAMS = ("wafl", "make", "python", "pytest", "pip", "flwr", "flower-superlink", "flower-supernode")


@cache
def commands() -> list[Command]:
    return [*commands_of_blocks(), *commands_in_the_text()]


def commands_of_blocks() -> Iterator[Command]:
    for block in blocks():
        if block.language == "python":
            continue
        number, pending = block.line, ""
        for line in block.text.splitlines():
            pending += line.removesuffix("\\")
            if not line.endswith("\\"):
                if words := words_of(pending):
                    yield Command(f"{block.page}:{number}", words, whole=True)
                pending = ""
            number += 1


def commands_in_the_text() -> Iterator[Command]:
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        mine = [block for block in blocks() if block.page == name]
        inside = {block.line + row for block in mine for row in range(len(block.text.splitlines()))}
        for number, line in enumerate(page.read_text().splitlines(), start=1):
            for code in re.findall(r"`([^`]+)`", line) if number not in inside else ():
                if (words := words_of(code)) and len(words) > 1:
                    yield Command(f"{name}:{number}", words, whole=False)


def words_of(line: str) -> tuple[str, ...] | None:
    """The program, without its folder, and its arguments; None if it is no command that we know."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return None
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if not words or words[0].rpartition("/")[2] not in PROGRAMS:
        return None
    return words[0].rpartition("/")[2], *words[1:]


def check_wafl(command: Command) -> None:
    result: Any = typer.main.get_command(app)
    words = list(command.words[1:])
    path = ["wafl"]
    while isinstance(result, TyperGroup) and words and not words[0].startswith("-"):
        try:
            _, inner, _ = result.resolve_command(click.Context(result), words[:1])
        except click.exceptions.UsageError:
            pytest.fail(f"{command}: {' '.join(path)} has no command {words[0]}")
        path.append(words.pop(0))
        result = inner
    try:
        result.make_context(" ".join(path), words, resilient_parsing=not command.whole)
    except click.exceptions.NoArgsIsHelpError:
        assert not command.whole, f"{command}: which command?"
    except click.exceptions.ClickException as error:
        pytest.fail(f"{command}: {error.format_message()}")


def check_make(command: Command) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for word in command.words[1:]:
        assert "=" in word or word in targets, f"{command}: the Makefile has no target {word}"


def check_python(command: Command) -> None:
    """The file is there, and knows the options."""
    first, *words = command.words[1:]
    shared: list[Path] = []
    if first == "-m":
        first, *words = words
        module = first
        if first == "research" and words:
            name, *words = words
            assert name in {*EXPERIMENTS, *TOOLS}, f"{command}: research has no experiment {name}"
            module = TOOLS[name] if name in TOOLS else EXPERIMENTS[name].module
            shared = [ROOT / "research" / "jobs.py", ROOT / "research" / "registered" / "splits.py"]
        folder = ROOT / f"{module.replace('.', '/')}.py"
        folder = folder if folder.exists() else folder.with_suffix("") / "__main__.py"
        if not folder.exists():
            assert importlib.util.find_spec(first) is not None, f"{command}: there is no module {first}"
            return
        shared.append(ROOT / "benchmarks" / "options.py")
    else:
        folder = ROOT / first
    assert folder.exists(), f"{command}: there is no file {first}"
    text = "".join(path.read_text() for path in (folder, *shared))
    for word in words:
        if word.startswith("--"):
            assert f'"{word}"' in text, f"{command}: {first} has no option {word}"


def check_pytest(command: Command) -> None:
    words = command.words
    places = [path for path in words[1:] if path.startswith("tests")]
    for path in places:
        assert (ROOT / path.partition("::")[0]).exists(), f"{command}: there is no {path}"
    if "-m" in words:
        named = set(re.findall(r"\w+", words[words.index("-m") + 1])) - {"not", "and", "or"}
        known = {marker.partition(":")[0] for marker in project()["tool"]["pytest"]["ini_options"]["markers"]}
        assert named <= known, f"{command}: no marker {named - known} in pyproject.toml"


def check_pip(command: Command) -> None:
    """Check the name and the extras of our own package, and that it comes from a clone or a wheel."""
    name = project()["project"]["name"]
    for word in command.words[2:]:
        if match := re.match(r"wafl[\w-]*|\.(?=\[|$)", word):
            assert match[0] in (name, "."), f"{command}: the package is {name}"
            wanted = re.findall(r"\[([\w,-]+)\]", word)
            extras = {extra for group in wanted for extra in group.split(",")}
            unknown = extras - set(project()["project"]["optional-dependencies"])
            assert not unknown, f"{command}: pyproject.toml has no extra {', '.join(sorted(unknown))}"
            result = match[0] == "." or "--find-links" in command.words
            assert result, f"{command}: {name} is on no package index, so write '.' or --find-links"


def check_flower(command: Command) -> None:
    """Flower installs such a program; its options are its own."""
    assert entry_points(group="console_scripts").select(name=command.words[0]), f"{command}: Flower has no such program"


@cache
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


CHECKS = {
    "wafl": check_wafl,
    "make": check_make,
    "python": check_python,
    "pytest": check_pytest,
    "pip": check_pip,
    **dict.fromkeys(("flwr", "flower-superlink", "flower-supernode"), check_flower),
}


@pytest.mark.parametrize("command", commands(), ids=str)
def test_a_command_on_a_page_exists_as_it_is_written(command: Command) -> None:
    CHECKS[command.words[0]](command)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("wafl trane experiment.toml", "wafl has no command trane"),
        ("wafl run --round 3", "No such option"),
        ("wafl resume", "Missing"),
        ("wafl config verify", "wafl config has no command verify"),
        ("make demos", "no target demos"),
        ("python tools/fast.py", "no file tools/fast.py"),
        ("python -m benchmarks.fast", "no module benchmarks.fast"),
        ("python -m benchmarks.speed --round 3", "no option --round"),
        ("python -m research leaderbord", "no experiment leaderbord"),
        ("python -m research liars --round 3", "no option --round"),
        ("python -m tests.soap", "no module tests.soap"),
        ("pytest -m quick", "no marker"),
        ("pip install 'wafl-learn[flour]'", "no extra flour"),
        ("pip install '.[flour]'", "no extra flour"),
        ("pip install wafl", "the package is wafl-learn"),
        ("pip install 'wafl-learn[flower]'", "wafl-learn is on no package index"),
    ],
)
def test_a_command_that_does_not_exist_is_found_out(line: str, message: str) -> None:
    words = words_of(line)
    assert words is not None
    with pytest.raises((AssertionError, pytest.fail.Exception), match=re.escape(message)) as failure:
        CHECKS[words[0]](Command("page.md:7", words, whole=True))
    assert str(failure.value).startswith("page.md:7 ")


def test_the_reference_has_every_public_name() -> None:
    entries = set(re.findall(r"^::: [\w.]+\.(\w+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE))
    named = {name for name, preset in wafl.METHODS.items() if preset.options.__module__.rpartition(".")[2] in entries}
    missing = set(vars(wafl)["__all__"]) - entries - named - {"METHODS"}
    assert not missing, "docs/api.md needs a line for each, such as `::: wafl.train.fit.fit`"


def test_the_notebook_is_the_tutorial() -> None:
    page, made = ROOT / "docs/tutorial.md", ROOT / "docs/tutorial.ipynb"
    assert made.read_text() == notebook(page.read_text()), "run .venv/bin/python tools/notebook.py"
    cells = [cell for cell in json.loads(made.read_text())["cells"] if cell["cell_type"] == "code"]
    assert ["".join(cell["source"]) for cell in cells] == [block.text for block in python_blocks("docs/tutorial.md")]
