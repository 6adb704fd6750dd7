"""A model card with the metadata that the Hugging Face Hub reads, its certificate and a badge; nothing is uploaded."""

import json
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, Protocol, Self

from wafl.base.files import write_whole
from wafl.results.export import Trained


class Tested(Protocol):
    """What is asked of a score (:class:`wafl.Score`)."""

    @property
    def attack(self) -> str: ...
    @property
    def accuracy(self) -> float | None: ...
    @property
    def value(self) -> float: ...
    @property
    def unseen(self) -> Self | None: ...


class Promised(Protocol):
    """What is asked of a certificate (:class:`wafl.Promise`)."""

    @property
    def values(self) -> dict[float, float]: ...
    def save(self, path: str | os.PathLike[str]) -> Path: ...


def write_card(
    run: Trained, folder: str | os.PathLike[str], scores: Sequence[Tested], certificate: Promised | None
) -> Path:
    """Write the card's files into a new or empty folder and return its ``README.md``."""
    home = Path(folder)
    if home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise FileExistsError(f"{home} exists already and is not empty: choose another folder, or remove it")
    home.mkdir(parents=True, exist_ok=True)
    rows = [row for score in scores for row in _rows(score)]
    words = ["No certificate was issued: `wafl certify` writes one if one can be proven."]
    if certificate is not None:
        page = certificate.save(home / "certificate.json")
        words = [f"![{_promise(certificate)}](badge.svg)", "", *page.read_text().splitlines()[2:], ""]
        words += ["The file is [certificate.json](certificate.json); `wafl verify` checks it with model and data."]
        write_whole(home / "badge.svg", _badge("certified loss", _promise(certificate)).encode())
    task, metric = _task(run)
    table = [f"| {who} | {attack} | {value:.4g} |" for who, attack, value in rows]
    lines = [
        *("---", *(f"{key}: {json.dumps(value)}" for key, value in _metadata(run, rows).items()), "---"),
        *(f"# {run.method}, Wasserstein-robust federated learning", ""),
        f"A model for {task.replace('-', ' ')}, trained with `wafl-learn` by {run.method} on many clients whose data "
        "stayed where they were.",
        *("", "## Data", "", f"{_data(run)} Inputs are in {run.settings.get('unit', 'input units')}."),
        *([] if run.classes is None else ["", f"Classes: {', '.join(run.classes)}."]),
        *("", "## Method", "", "```json", json.dumps(run.settings.get("method", {}), indent=1, default=str), "```"),
        *("", "## Results", "", f"| clients | attack | {metric} |", "| --- | --- | --- |", *table),
        *("", "## Certificate", "", *words, ""),
    ]
    write_whole(home / "README.md", "\n".join(lines).encode())
    return home / "README.md"


def _task(run: Trained) -> tuple[str, str]:
    """The hub's name of what the model does, and of how that is measured."""
    if run.num_classes is None:
        return "tabular-regression", "loss"
    return f"{'image' if len(run.intake.shape or ()) == 3 else 'tabular'}-classification", "accuracy"


def _rows(score: Tested) -> list[tuple[str, str, float]]:
    """Whose test examples, under which attack, and the accuracy or loss there."""
    seen = ("that trained, on held-out examples", score.attack, score.value)
    return [seen] if score.unseen is None else [seen, ("that never trained", score.attack, score.unseen.value)]


def _metadata(run: Trained, rows: Sequence[tuple[str, str, float]]) -> dict[str, Any]:
    """What the hub reads, as its documentation has it."""
    task, metric = _task(run)
    name = (run.settings.get("data") or {}).get("dataset", "own data")
    results = [
        {
            "task": {"type": task},
            "dataset": {
                "type": name.replace(" ", "-"),
                "name": f"{name}, clients {who}",
                "config": f"attack: {attack}",
            },
            "metrics": [{"type": metric, "value": value}],
        }
        for who, attack, value in rows
    ]
    about = {"library_name": "wafl-learn", "pipeline_tag": task, "tags": ["federated-learning", "robustness"]}
    return {**about, "metrics": [metric], "model-index": [{"name": run.method, "results": results}]}


def _data(run: Trained) -> str:
    recipe = run.settings.get("data")
    if not recipe:
        return "The clients' own data, which the run does not describe."
    return f"{recipe['dataset']}, as `{json.dumps(recipe.get('partition', {}))}`."


def _promise(certificate: Promised) -> str:
    """The largest radius, in a few words."""
    radius = max(certificate.values)
    return f"at most {certificate.values[radius]:.3g} within {radius:g}"


def _badge(label: str, value: str) -> str:
    """Two words side by side, as a picture."""
    left, right = 7 * len(label) + 10, 7 * len(value) + 10
    text = "".join(
        f'<text x="{x}" y="14" textLength="{7 * len(each)}">{escape(each)}</text>'
        for x, each in ((5, label), (left + 5, value))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{escape(label)}: {escape(value)}"><rect width="{left}" height="20" fill="#444"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="#2a7f62"/>'
        f'<g fill="#fff" font-family="Verdana,sans-serif" font-size="11">{text}</g></svg>\n'
    )
