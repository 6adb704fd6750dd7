"""The workflows of .github and the settings of Read the Docs parse, and call what this repository has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def targets_of(workflow: dict[str, Any]) -> list[str]:
    """Return the targets that the steps of a workflow make."""
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    return [word for step in steps for word in re.findall(r"\bmake ([\w-]+)", step.get("run", ""))]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_targets_that_exist_and_may_do_no_more_than_it_must(path: Path) -> None:
    workflow = read(path)
    called = targets_of(workflow)
    assert called
    assert set(called) <= TARGETS
    assert workflow["permissions"] == {"contents": "read"}, "a job asks for what it needs besides"
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 60, name
        assert set(job.get("needs", "").split()) <= set(workflow["jobs"])
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step), step
            assert re.fullmatch(r"[\w./-]+@(v\d+|release/v1)", step.get("uses", "a@v1")), step


def test_every_promised_python_is_tested_on_linux_and_macos_with_pins_and_without() -> None:
    promised = {
        words[-1] for line in PROJECT["classifiers"] if len(words := line.split(" :: ")) == 3 and "." in words[-1]
    }
    jobs = read(ROOT / ".github/workflows/tests.yml")["jobs"]
    for name, target in (("pinned", "test"), ("unpinned", "test-unpinned")):
        assert set(jobs[name]["strategy"]["matrix"]["python"]) == promised
        assert set(jobs[name]["strategy"]["matrix"]["os"]) == {"ubuntu-latest", "macos-latest"}
        assert targets_of({"jobs": {name: jobs[name]}}) == [target]


def test_no_core_package_has_an_upper_limit() -> None:
    assert [line for line in PROJECT["dependencies"] if "<" in line] == []


def test_read_the_docs_builds_what_make_docs_builds() -> None:
    settings = read(ROOT / ".readthedocs.yaml")
    assert (ROOT / settings["mkdocs"]["configuration"]).is_file()
    (install,) = settings["build"]["jobs"]["install"]
    assert (ROOT / install.split()[3]).is_file()
    assert re.search(r"\.\[(\w+)\]", install)[1] in PROJECT["optional-dependencies"]  # pyright: ignore


def test_issue_forms_have_what_github_needs() -> None:
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = read(path)
        if path.stem != "config":
            assert form.keys() >= {"name", "description", "body"}
            fields = [field for field in form["body"] if field["type"] != "markdown"]
            assert len({field["id"] for field in fields}) == len(fields) > 0
            assert all(field["attributes"]["label"] for field in fields)
