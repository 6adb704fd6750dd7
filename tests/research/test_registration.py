"""Results that embed a registration: its file was committed before them, and is what it was."""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from hashlib import sha256
from pathlib import Path

import pytest

from research.catalog import EXPERIMENTS
from research.registration import registered
from research.reproduction import experiments as files
from research.reproduction.reproduce import digest

ROOT = Path(__file__).parents[2]
REGISTERED = "experiments/registered"
NOT_RUN: set[str] = set()
"""Registrations whose experiments have not been run; remove a name when its results are committed."""

COMMANDS = {"natural-2": "leaderboard-2"}
"""The experiments of drafts that have another name."""


def git(folder: Path, *words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True).stdout


def first_problem(folder: Path, results: str, source: str, digest: str) -> str | None:
    """Why results do not count: the bytes of their source must be in every parent of the first commit that has them."""
    if sha256((folder / source).read_bytes()).hexdigest() != digest:
        return f"{source} is not what {results} embeds"
    commits = git(folder, "log", "--reverse", "--format=%H %P", f"-S{digest}", "--", results).decode().splitlines()
    before = commits[0].split()[1:] if commits else ["HEAD"]
    other = [
        subprocess.run(["git", "show", f"{parent}:{source}"], cwd=folder, capture_output=True, check=False).stdout
        for parent in before
    ]
    if not other or any(sha256(each).hexdigest() != digest for each in other):
        return f"{source} was not committed before {results}"
    return None


def whole_clone() -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("NOT CHECKED: there is no git here, so the order of commits is unknown")
    if git(ROOT, "rev-parse", "--is-shallow-repository").strip() != b"false":
        pytest.skip("NOT CHECKED: this clone is shallow: git fetch --unshallow")


def embedding() -> list[tuple[str, dict[str, str]]]:
    result = [
        (path.relative_to(ROOT).as_posix(), json.loads(path.read_bytes())) for path in ROOT.glob("docs/**/*.json")
    ]
    return [(name, content["registered"]) for name, content in result if "registered" in content]


def test_results_came_after_their_registration() -> None:
    whole_clone()
    for results, stamp in embedding():
        assert first_problem(ROOT, results, f"{REGISTERED}/{stamp['name']}.toml", stamp["sha256"]) is None


def test_registrations_are_what_results_embed() -> None:
    """Without git, too: a changed registration is a new file."""
    names = {path.stem for path in (ROOT / REGISTERED).glob("*.toml")}
    assert {stamp["name"] for _, stamp in embedding()} == names - NOT_RUN
    for _, stamp in embedding():
        assert registered(stamp["name"])[1] == stamp


@pytest.mark.parametrize("name", [name for name, each in EXPERIMENTS.items() if each.registration is not None])
def test_every_registration_loads(name: str) -> None:
    path = EXPERIMENTS[name].registration
    assert path is not None
    if path.parent.name == "registered":
        content, stamp = registered(path.stem)
        assert stamp == {"name": path.stem, "sha256": sha256(path.read_bytes()).hexdigest()}
        assert content
    else:
        assert all(files.read(name, protocol, "full") for protocol in files.PROTOCOLS)


def test_every_registration_belongs_to_an_experiment() -> None:
    """What a scale changes names experiments, and a draft has the name of one, which has no registration yet."""
    known = {experiment.registration for experiment in EXPERIMENTS.values()} - {None}
    every = set((ROOT / "experiments").rglob("*.toml"))
    scales, drafts = ({path for path in every if path.parent.name == folder} for folder in ("scales", "drafts"))
    assert known == every - scales - drafts
    for path in scales:
        assert path.stem in files.SCALES
        assert set(tomllib.loads(path.read_text(encoding="utf-8"))) <= {each.stem for each in known if each is not None}
    assert all(EXPERIMENTS[COMMANDS.get(path.stem, path.stem)].registration is None for path in drafts)


CHANGED = {
    *(f"tab-domains-cnn-{part}-fair" for part in ("usps", "svhn", "mnist")),
    *(f"tab-domains-{part}-fair" for part in ("usps", "svhn", "mnist")),
}
"""Numbers whose file in experiments/ has changed since; their pages say so."""


def test_every_reproduction_has_the_digest_of_its_file() -> None:
    numbers = {path.stem: json.loads(path.read_bytes()) for path in (ROOT / "docs" / "reproduction").glob("*.json")}
    digests = {
        part.label: digest(part)
        for name in files.names()
        for protocol in files.PROTOCOLS
        for part in files.read(name, protocol, "full")
    }
    assert {name for name, each in numbers.items() if digests.get(name) != each["digest"]} == CHANGED


def test_promises_were_committed_before_sealed_clients_were_opened() -> None:
    opened = ROOT / "docs" / "promises" / "opened.json"
    if not opened.exists():
        pytest.skip("NOT CHECKED: no sealed client was opened")
    whole_clone()
    digest = json.loads(opened.read_bytes())["issued"]
    assert first_problem(ROOT, "docs/promises/opened.json", "docs/promises/issued.json", digest) is None


@pytest.mark.parametrize(
    ("order", "problem"),
    [
        (["source", "results"], None),
        (["results", "source"], "was not committed before"),
        (["both"], "was not committed before"),
        (["other", "both"], "was not committed before"),
        (["source", "results", "changed"], "is not what"),
        (["source", "changed", "results", "source"], "was not committed before"),
        (["source"], None),
    ],
)
def test_the_wrong_order_is_noticed(order: list[str], problem: str | None, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    digest = sha256(b"the question").hexdigest()
    texts = {
        "source": {"source.toml": "the question"},
        "changed": {"source.toml": "another question"},
        "results": {"results.json": digest},
        "both": {"source.toml": "the question", "results.json": digest},
        "other": {"other": ""},
    }
    for step in order:
        for name, text in texts[step].items():
            (tmp_path / name).write_text(text)
        git(tmp_path, "add", ".")
        git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", step)
    result = first_problem(tmp_path, "results.json", "source.toml", digest)
    assert result is None if problem is None else result is not None and problem in result
