"""Export a trained model: one file for other programs, or a model card for the Hugging Face Hub; nothing is uploaded.

The preprocessing is part of the exported model. For any number of raw examples in the data set's form (for example,
pixels from 0 to 255, as floats), it computes

``outputs = model((raw - shift) / scale)``
"""

import copy
import io
import json
import logging
import math
import os
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Protocol, Self, get_args

import torch
from torch import Tensor, nn

from wafl import models
from wafl.base.describe import describe, rounded_up
from wafl.base.extras import require
from wafl.base.files import tensors_to_bytes, write_whole
from wafl.data.bring.intake import Intake
from wafl.data.preprocessing import Preprocessing

Format = Literal["safetensors", "pt2", "onnx"]
FORMATS: tuple[str, ...] = get_args(Format)
ABOUT = "wafl"
TOLERANCE = 1e-5
"""The maximum difference between an exported model's outputs and the run's, relative and absolute."""


class Trained(Protocol):
    """The parts of a run that an export uses."""

    @property
    def method(self) -> str:
        """The name of the method."""
        ...

    @property
    def module(self) -> nn.Module:
        """The module."""
        ...

    @property
    def params(self) -> Mapping[str, Tensor]:
        """The parameters, by name."""
        ...

    @property
    def num_classes(self) -> int | None:
        """The number of classes, or None for a regression."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the training."""
        ...

    @property
    def classes(self) -> Sequence[str] | None:
        """The names of the classes, if they have any."""

    @property
    def intake(self) -> Intake:
        """The conversion of examples to the model's inputs."""
        ...

    def outputs(self, x: Any) -> Tensor:
        """Return the model's outputs for examples."""
        ...


class RawModel(nn.Module):
    """The model ``model((raw - shift) / scale)``, with the shift and scale of a preprocessing."""

    shift: Tensor
    scale: Tensor

    def __init__(self, model: nn.Module, preprocessing: Preprocessing, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.model = model
        for name, value, neutral in (("shift", preprocessing.shift, 0.0), ("scale", preprocessing.scale, 1.0)):
            self.register_buffer(name, torch.tensor(neutral, dtype=dtype) if value is None else value.to("cpu", dtype))

    def forward(self, raw: Tensor) -> Tensor:
        """Return the outputs for raw examples."""
        return self.model((raw - self.shift) / self.scale)


def export_model(
    run: Trained, path: str | os.PathLike[str], format: Format, preprocessing: Preprocessing, input_shape: Sequence[int]
) -> Path:
    """Write a run's model to a new file and return its path.

    ``pt2`` is torch's own format, a program that needs only torch; ``onnx`` (the extra ``onnx``) is for ONNX Runtime
    and others; ``safetensors`` contains the numbers: the model's state under ``model.``, ``shift`` and ``scale``, and
    instructions in the metadata under ``wafl``. The preprocessing is ``clients.train.prepare``, as for the training
    examples; one example has the shape ``clients.input_shape``.

    >>> import json, tempfile, torch, wafl
    >>> from safetensors import safe_open
    >>> clients = wafl.load_dataset("digits").partition(num_clients=20, labels_per_client=3, preprocess="zscore")
    >>> run = wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=1, local_epochs=1)
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = f"{folder.name}/model.safetensors"
    >>> _ = run.export(path)

    >>> with safe_open(path, "pt") as file:
    ...     about = json.loads(file.metadata()["wafl"])
    ...     tensors = {name: file.get_tensor(name) for name in file.keys()}
    >>> model = wafl.models.build(about["model"])  # or your own module
    >>> shift, scale = tensors.pop("shift"), tensors.pop("scale")
    >>> _ = model.load_state_dict({name.removeprefix("model."): value for name, value in tensors.items()})
    >>> raw = clients.test.raw.float()
    >>> torch.equal(model((raw - shift) / scale), run.outputs(clients.test.x))
    True
    >>> folder.cleanup()

    Use ``pt2`` and ``onnx`` like this:

        torch.export.load("model.pt2").module()(raw)
        onnxruntime.InferenceSession("model.onnx").run(["outputs"], {"raw": raw.numpy()})
    """
    path, shape = Path(path), tuple(input_shape)
    if format not in FORMATS:
        raise ValueError(f"format={format!r} is unknown: use one of {', '.join(FORMATS)}")
    refuse_existing(path)
    check_export_packages(format)
    export = _Export.of(run, preprocessing, shape)
    about = json.dumps(
        {
            "method": run.method,
            "model": models.spec(run.module),
            "num_classes": run.num_classes,
            "input_shape": list(shape),
            "dtype": str(export.module.shift.dtype).removeprefix("torch."),
            "preprocessing": preprocessing.name,
            "unit": run.settings.get("unit", preprocessing.unit),
            "bounds": describe(preprocessing.bounds),
        }
    )
    encode = {"safetensors": export.safetensors, "pt2": export.pt2, "onnx": export.onnx}[format]
    content = encode(about)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)
    return path


def check_export_packages(format: str) -> None:
    """Raise a ValueError if a package that the format needs is missing."""
    if format == "onnx":
        require("onnxscript", extra="onnx", what="format='onnx'")


def refuse_existing(path: Path) -> None:
    """Raise FileExistsError if the file exists already."""
    if path.exists():
        raise FileExistsError(f"{path} exists already: choose another file, or remove it")


@dataclass(frozen=True)
class _Export:
    """A copy of a run's model with the preprocessing in front, and the reference for comparisons."""

    module: RawModel
    run: Trained
    preprocessing: Preprocessing
    shape: tuple[int, ...]

    @classmethod
    def of(cls, run: Trained, preprocessing: Preprocessing, shape: tuple[int, ...]) -> Self:
        for name, value in (("shift", preprocessing.shift), ("scale", preprocessing.scale)):
            if value is not None and not _spreads(tuple(value.shape), shape):
                raise ValueError(f"input_shape={shape} does not fit the preprocessing's {name}: {tuple(value.shape)}")
        dtype = next(iter(run.params.values())).dtype
        module = RawModel(copy.deepcopy(run.module).cpu(), preprocessing, dtype).eval().requires_grad_(False)
        export = cls(module, run, preprocessing, shape)
        try:
            export.check(module)
        except (RuntimeError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"the model does not take examples of input_shape={shape}: {error}") from error
        return export

    def safetensors(self, about: str) -> bytes:
        return tensors_to_bytes(self.module.state_dict(), {ABOUT: about})

    def pt2(self, about: str) -> bytes:
        program, buffer = self.program(), io.BytesIO()
        torch.export.save(program, buffer, extra_files={f"{ABOUT}.json": about})
        return buffer.getvalue()

    def onnx(self, about: str) -> bytes:
        program = self.program()
        with _quiet():
            made: Any = torch.onnx.export(
                program, dynamo=True, input_names=["raw"], output_names=["outputs"], verbose=False
            )
        made.model.metadata_props[ABOUT] = about
        return made.model_proto.SerializeToString()

    def program(self) -> Any:
        """Return the model traced by torch.export, for any number of examples."""
        try:
            batch = torch.export.Dim("batch")
            program = torch.export.export(self.module, (self.probe(2),), dynamic_shapes=({0: batch},))
        except Exception as error:  # of many types, most of them private to torch
            raise ValueError(
                f"torch.export cannot trace this model for any batch; format='safetensors' needs no tracing. {error}"
            ) from error
        self.check(program.module())
        return program

    def check(self, exported: Callable[[Tensor], Tensor]) -> None:
        """Raise an error if the model's outputs differ from the run's, for one example and for several."""
        numbers = self.run.intake.prepare.takes_numbers  # then a run takes raw examples, too
        for count in (1, 3):
            raw = self.probe(count)
            got, expected = exported(raw), self.run.outputs(raw if numbers else self.preprocessing(raw, raw.dtype))
            if expected.shape != got.shape or not torch.allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE):
                raise ValueError(
                    "the exported model gives other outputs than the run: what it gives must not depend on the batch"
                )

    def probe(self, count: int) -> Tensor:
        """Return raw examples whose prepared values lie between -1 and 1."""
        shape, module = (count, *self.shape), self.module
        prepared = torch.arange(math.prod(shape), dtype=module.shift.dtype).sin().view(shape)
        return prepared * module.scale + module.shift


def _spreads(small: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Return whether one number, or one per channel or pixel, broadcasts to every value of an example."""
    try:
        return tuple(torch.broadcast_shapes(small, shape)) == shape
    except RuntimeError:
        return False


@contextmanager
def _quiet() -> Generator[None, None, None]:
    """Suppress the ONNX exporter's deprecation and torchvision warnings."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        log.setLevel(level)


ATTESTED = "Not proven: these numbers are the issuer's word. `wafl verify` with model and data proves them."


class Tested(Protocol):
    """The parts of a score (:class:`wafl.Score`) that a model card uses."""

    @property
    def conditions(self) -> str:
        """The conditions of the test."""
        ...

    @property
    def value(self) -> float:
        """The accuracy or loss."""
        ...

    @property
    def unseen(self) -> Self | None:
        """The score on unseen clients, if there are any."""


class Promised(Protocol):
    """The parts of a certificate (:class:`wafl.Promise`) that a model card uses."""

    @property
    def values(self) -> dict[float, float]:
        """The bound at each radius."""
        ...

    @property
    def proven(self) -> bool:
        """Whether the bounds are proven."""
        ...

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the certificate to a file."""
        ...


def write_card(
    run: Trained, folder: str | os.PathLike[str], scores: Sequence[Tested], certificate: Promised | None
) -> Path:
    """Write the card's files to a new or empty folder and return its ``README.md``."""
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
    """Write a template of this folder with these values filled in."""
    text = files("wafl.results").joinpath(template).read_text(encoding="utf-8")
    write_whole(path, text.format(**values).encode())
    return path


def _hub_task(run: Trained) -> tuple[str, str]:
    """Return the hub's names of the model's task and of its metric."""
    if run.num_classes is None:
        return "tabular-regression", "loss"
    return f"{'image' if len(run.intake.shape or ()) == 3 else 'tabular'}-classification", "accuracy"


def _rows(score: Tested) -> list[tuple[str, str, float]]:
    """Return the tested clients, the conditions, and the accuracy or loss."""
    seen = ("that trained, on held-out examples", score.conditions, score.value)
    if score.unseen is None:
        return [seen]
    return [seen, ("that never trained", score.unseen.conditions, score.unseen.value)]


def _metadata(run: Trained, rows: Sequence[tuple[str, str, float]]) -> dict[str, Any]:
    """Return the metadata in the hub's documented form."""
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
    """Describe the bound at the largest radius in a few words."""
    radius = max(certificate.values)
    return f"at most {rounded_up(certificate.values[radius])} within {radius:g}"
