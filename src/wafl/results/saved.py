"""Load runs from disk, and check the content and origin of their files."""

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from wafl import models
from wafl.base.files import read_limited, read_tensors, unsealed
from wafl.base.json_types import check_types, parsed_table
from wafl.base.options import options_of
from wafl.data.bring.intake import Intake
from wafl.parts.schedule import Schedule
from wafl.results.history import History
from wafl.results.run import FORMAT, LAST, Run, buffers, check_names, with_params
from wafl.tasks.layout import Layout
from wafl.tasks.task import Loss

ALWAYS = (
    "rounds", "cohort", "local_steps", "local_epochs", "batch_size", "learning_rate", "momentum", "weight_decay",
    "server_learning_rate", "seed",
)  # fmt: skip
"""The fields that the schedules of all versions have."""
SCHEDULE: dict[str, Any] = {
    name if name in ALWAYS else f"{name}?": option.kind | None if option.optional else option.kind
    for name, option in options_of(Schedule).items()
} | {"learning_rate": float | str}  # a function of the round is described by its name
SAVED: dict[str, Any] = {
    "method": str,
    "model": dict[str, Any] | None,
    "num_classes": int | None,
    "intake?": {
        "classes": list[str] | None,
        "columns": list[str] | None,
        "prepare": dict[str, Any],
        "shape?": list[int] | None,
    },
    "trained": list[str],
    "statistics?": list[str],
    "buffers?": list[str],
    "loss": str | None,
    "settings": {
        "method?": {"objective?": dict[str, Any] | None},
        "schedule?": SCHEDULE,
        "sweep?": dict[str, Any] | None,
        "data?": dict[str, Any] | None,
        "unit?": str,
        "scalars?": dict[str, float],
    },
    "client_weights": list[float],
    "history": list[dict[str, Any]],
    "sha256": str,
}
"""The types of ``run.json`` (:func:`wafl.base.json_types.check_types`)."""


def load_run(path: str | os.PathLike[str], model: nn.Module | None = None, loss: Loss | None = None) -> Run:
    """Load the run from a folder that :meth:`Run.save` wrote.

    Args:
        path: the folder.
        model: the module, if you wrote it; a model from :mod:`wafl.models` is built from the folder.
        loss: the loss, if you wrote it.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    folder = Path(path)
    for name in ("run.json", "params.safetensors"):
        if not (folder / name).is_file():
            runs = sorted(folder.glob("*/run.json"))
            hint = f": load one of its runs, such as {runs[0].parent}" if runs else ""
            raise FileNotFoundError(f"{folder} is not a saved run: it has no {name}{hint}")
    try:
        written = read_limited(folder / "run.json")
        if (version := parsed_table(written).get("format")) != FORMAT:
            raise ValueError(f"it has format {version}, this version reads {FORMAT}: update wafl-learn")
        about = unsealed(written)
        check_types(about, SAVED)
        saved = load(_tensors(folder, about))
        history = History.from_json(about["history"])
        weights = torch.tensor(about["client_weights"], dtype=torch.float64)
        params = {name: saved[name] for name in about["trained"]}
        last = {name: saved.pop(LAST + name) for name in params if LAST + name in saved} or None
        kept = {name: saved.pop(name) for name in about.get("buffers", ())}
        statistics = {name: kept[name].shape for name in about.get("statistics", ())}
        intake = Intake.from_json(about.get("intake"))
    except (KeyError, TypeError, ValueError, AttributeError, SafetensorError) as error:
        raise ValueError(f"{folder} is damaged: {error}") from error
    if model is None:
        if about["model"] is None:
            raise ValueError(f"{folder} holds a model that wafl did not build: pass it as load_run(path, model=...)")
        try:
            model = models.build(about["model"])
        except (KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise ValueError(f"{folder} is damaged: it describes no model that wafl builds: {error}") from error
    loss = loss if loss is not None else about["loss"]
    if loss is None:
        raise ValueError(f"{folder} was trained with your own loss: pass it as load_run(path, loss=...)")
    model = with_params(model, saved)
    if "buffers" in about:  # an earlier version saved none
        current = buffers(model)
        check_names("buffer", current, kept)
        for name, value in kept.items():
            current[name].data = value.to(current[name].device)
    if "statistics" in about:
        layout = Layout({name: value.shape for name, value in params.items()}, statistics)
        for name, value in model.named_parameters():
            value.requires_grad_(name in params)
    else:  # an earlier version left it to the model
        layout = Layout.of(model)
    settings, num_classes = _as_named_now(about["settings"]), about["num_classes"]
    return Run(about["method"], params, model, layout, history, weights, settings, num_classes, loss, intake, last)


def _as_named_now(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a saved run's settings with current names: the objective used to be called the adversary."""
    method = settings.get("method")
    if not isinstance(method, dict) or "adversary" not in method:
        return settings
    renamed = {"objective" if name == "adversary" else name: value for name, value in cast(Any, method).items()}
    return {**settings, "method": renamed}


def has_own_model(path: str | os.PathLike[str]) -> bool:
    """Return whether a saved run has a user's model, which must be passed to load it."""
    try:
        return unsealed(read_limited(Path(path) / "run.json")).get("model") is None
    except (OSError, ValueError):
        return False  # load_run explains the error


def saved_history(path: str | os.PathLike[str]) -> History:
    """Return the history of a saved run; its files are checked, but its model is not built."""
    folder = Path(path)
    try:
        about = unsealed(read_limited(folder / "run.json"))
        check_types(about, {"sha256": str, "history": list[Any]})
        _tensors(folder, about)
        return History.from_json(about["history"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder} is damaged: {error}") from error


def _tensors(folder: Path, about: Mapping[str, Any]) -> bytes:
    """Return the tensors of a saved run; raise ValueError if their checksum is wrong."""
    content = read_tensors(folder / "params.safetensors")
    if sha256(content).hexdigest() != about["sha256"]:
        raise ValueError("params.safetensors is not the file that run.json was written with")
    return content
