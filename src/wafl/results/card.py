"""A model card with the metadata that the Hugging Face Hub reads, its certificate and a badge; nothing is uploaded."""

import json
import os
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol, Self

from wafl.base.files import write_whole
from wafl.results.export import Trained

ATTESTED = "Not proven: these numbers are the issuer's word. `wafl verify` with model and data proves them."


class Tested(Protocol):
    """What is asked of a score (:class:`wafl.Score`)."""

    @property
    def conditions(self) -> str: ...
    @property
    def value(self) -> float: ...
    @property
    def unseen(self) -> Self | None: ...


class Promised(Protocol):
    """What is asked of a certificate (:class:`wafl.Promise`)."""

    @property
    def values(self) -> dict[float, float]: ...
    @property
    def proven(self) -> bool: ...
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
    words = "No certificate was issued: `wafl certify` writes one if one can be proven."
    if certificate is not None:
        page = certificate.save(home / "certificate.json").read_text().splitlines()[2:]
        checked = "The file is [certificate.json](certificate.json); `wafl verify` checks it with model and data."
        caveat = [] if certificate.proven else [ATTESTED, ""]
        text = _promise(certificate)
        words = "\n".join([*caveat, f"![{text}](badge.svg)", "", *page, "", checked])
        sizes = {"width": 7 * len(text) + 118, "right": 7 * len(text) + 10, "length": 7 * len(text)}
        name = "certified" if certificate.proven else "attested"
        _write(home / "badge.svg", "badge.svg", name=name, words=escape(text), **sizes)
    hub_task, metric = _hub_task(run)
    classes = "" if run.classes is None else f"\n\nClasses: {', '.join(run.classes)}."
    return _write(
        home / "README.md",
        "card.md",
        metadata="\n".join(f"{key}: {json.dumps(value)}" for key, value in _metadata(run, rows).items()),
        method=run.method,
        task=hub_task.replace("-", " "),
        data=f"{_data(run)} Inputs are in {run.settings.get('unit', 'input units')}.{classes}",
        settings=json.dumps(run.settings.get("method", {}), indent=1, default=str),
        metric=metric,
        rows="".join(f"| {who} | {test} | {value:.4g} |\n" for who, test, value in rows),
        certificate=words,
    )


def _write(path: Path, template: str, **values: Any) -> Path:
    """Write a template of this folder with these values in their places."""
    text = files("wafl.results").joinpath(template).read_text(encoding="utf-8")
    write_whole(path, text.format(**values).encode())
    return path


def _hub_task(run: Trained) -> tuple[str, str]:
    """The hub's name of what the model does, and of how that is measured."""
    if run.num_classes is None:
        return "tabular-regression", "loss"
    return f"{'image' if len(run.intake.shape or ()) == 3 else 'tabular'}-classification", "accuracy"


def _rows(score: Tested) -> list[tuple[str, str, float]]:
    """Return whose test examples, what was done to them, and the accuracy or loss there."""
    seen = ("that trained, on held-out examples", score.conditions, score.value)
    if score.unseen is None:
        return [seen]
    return [seen, ("that never trained", score.unseen.conditions, score.unseen.value)]


def _metadata(run: Trained, rows: Sequence[tuple[str, str, float]]) -> dict[str, Any]:
    """What the hub reads, as its documentation has it."""
    hub_task, metric = _hub_task(run)
    name = (run.settings.get("data") or {}).get("dataset", "own data")
    results = [
        {
            "task": {"type": hub_task},
            "dataset": {
                "type": name.replace(" ", "-"),
                "name": f"{name}, clients {who}",
                "config": f"test data: {test}",
            },
            "metrics": [{"type": metric, "value": value}],
        }
        for who, test, value in rows
    ]
    about = {"library_name": "wafl-learn", "pipeline_tag": hub_task, "tags": ["federated-learning", "robustness"]}
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
