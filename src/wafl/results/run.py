"""Define a trained model with its history, stored on disk as safetensors and JSON (``saved.py``)."""

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wafl import models
from wafl.base.bounds import check_box, warn_of_inputs
from wafl.base.files import sealed, tensors_to_bytes, write_whole
from wafl.base.options import documented
from wafl.data.bring.intake import Intake
from wafl.data.federation import Federation
from wafl.data.mistakes import what_is
from wafl.results.export import FORMATS, Format, Promised, Tested, export_model, write_card
from wafl.results.frames import to_frame, to_html, varying
from wafl.results.history import History, plot_histories
from wafl.results.personalize import Personalization, Personalized, personalize
from wafl.tasks.fitness import takes_integers
from wafl.tasks.layout import Layout
from wafl.tasks.losses import spelled
from wafl.tasks.task import Loss, sharing_tensors

FORMAT = 1
LAST = "last round: "
"""The prefix of the last round's tensors, in a file whose main tensors are the mean of several rounds."""

SHOWN = ("loss", "achieved_radius", "agreement")
"""The numbers of each round that a page shows."""


@documented
@dataclass(frozen=True)
class Run:
    """A trained model with its history, the result of :func:`wafl.fit`."""

    method: Annotated[str, "The name of the method."]
    params: Annotated[dict[str, Tensor], "The trained parameters, by name."]
    module: Annotated[nn.Module, "What the run computes with; to do with as you like, there is :attr:`model`."]
    layout: Annotated[Layout, "What a flat vector of the parameters holds, and in what order."]
    history: Annotated[History, "What happened, round by round."]
    client_weights: Annotated[Tensor, "The final weight of each client."]
    settings: Annotated[dict[str, Any], "All settings of the training, as plain values."] = field(
        default_factory=dict[str, Any]
    )
    num_classes: Annotated[int | None, "The number of classes; None for a regression."] = None
    loss: Annotated[Loss, "What clients minimized."] = "cross_entropy"
    intake: Annotated[Intake, "How the clients' examples came in, and what their classes are called."] = field(
        default_factory=Intake
    )
    last: Annotated[
        dict[str, Tensor] | None, "With ``average_last``, the parameters of the last round; ``params`` are the mean."
    ] = None

    @property
    def last_params(self) -> dict[str, Tensor]:
        """The parameters after the last round, by name; they differ from ``params`` if last rounds were averaged."""
        return self.params if self.last is None else self.last

    @cached_property
    def model(self) -> nn.Module:
        """The trained model in evaluation mode: your copy, the same at every access.

        You may call it, train it or move it to a device: this does not change the run (:meth:`to` moves a run), and the
        run does not change it.
        """
        return copy.deepcopy(self.module).eval()

    @cached_property
    def _at_rest(self) -> nn.Module:
        return sharing_tensors(self.module).eval()

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes, if they have any."""
        return self.intake.classes

    @property
    def point(self) -> dict[str, Any]:
        """The varied values of the run's sweep, by name; empty if it was trained alone."""
        return dict(self.settings.get("sweep") or {})

    @property
    def name(self) -> str:
        """The method, and the varied values of the sweep except the seed, such as ``WAFL (gamma=1.0)``."""
        varied = ", ".join(f"{name}={value}" for name, value in self.point.items() if name != "seed")
        return f"{self.method} ({varied})" if varied else self.method

    @property
    def diverged(self) -> str | None:
        """The reason why training diverged, if it did; the parameters are from the last good round."""
        return self.history.diverged

    def outputs(self, x: Any) -> Tensor:
        """Return the model's outputs (logits, if there are classes) for the examples ``x [N, ...]``.

        These are an array or nested lists, a data frame, a data set or a ``DataLoader``; labels are ignored. Bytes are
        prepared as in training. Other numbers are used unchanged, unless the clients were packed with
        ``standardize=True``: then they are raw, and standardized here.
        """
        given = self.intake.read(x, next(iter(self.params.values())))
        if tuple(given.shape) == self.intake.shape:
            raise ValueError(f"x is one example of shape {self.intake.shape}: give a batch, such as x[None]")
        warn_of_inputs(given, check_box(self.settings.get("bounds")), self.settings.get("unit", "input units"))
        try:
            with torch.no_grad():
                integers = takes_integers(self._at_rest, given[:1])
                return self._at_rest(given.long() if integers else given)
        except (RuntimeError, IndexError) as error:
            raise ValueError(f"x has {self.intake.compare(tuple(given.shape[1:]))}: {error}") from error

    def predict(self, x: Any) -> Tensor | NDArray[np.str_]:
        """Return the predicted classes of examples, by name if they have names; for a regression, :meth:`outputs`."""
        outputs = self.outputs(x)
        return outputs if self.num_classes is None else self.intake.name(outputs.argmax(-1))

    def predict_proba(self, x: Any) -> Tensor:
        """Return the probability of each class for examples ``x [N, ...]``: the softmax of :meth:`outputs`."""
        if self.num_classes is None:
            raise ValueError("a regression has no classes, and no probabilities: use run.predict(x)")
        return self.outputs(x).softmax(-1)

    def personalize(
        self,
        client: Federation,
        *,
        steps: int = Personalization.steps,
        learning_rate: float = Personalization.learning_rate,
        layers: str = Personalization.layers,
    ) -> Personalized:
        """Fine-tune a copy of the model on one client's training examples, and test both on its held-out examples.

        The run does not change. A certificate covers the global model only, not the fine-tuned one.

        Args:
            client: one client, such as ``clients.of_clients([3])``; it need not have trained.
            steps: steps of gradient descent, each on all of the client's training examples.
            learning_rate: the length of a step, in gradients.
            layers: what changes: ``"head"`` (the layer with parameters that the model defines last), ``"all"``, or a
                layer's name.
        """
        if not isinstance(client, Federation):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"client is {what_is(client)}: give one client, such as clients.of_clients([0])")
        self.intake.check_clients(client.train.prepare)
        options = Personalization(steps=steps, learning_rate=learning_rate, layers=layers)
        return personalize(self.module, self.loss, client, options)

    def to(self, device: torch.device | str) -> Self:
        """Return a copy of the run on a device such as ``"cuda"``, where it predicts and is tested."""
        params = {name: value.to(device) for name, value in self.params.items()}
        last = None if self.last is None else {name: value.to(device) for name, value in self.last.items()}
        return replace(self, params=params, module=copy.deepcopy(self.module).to(device), last=last)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write ``params.safetensors`` and ``run.json`` to a folder for :func:`wafl.load_run`; return the folder."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        kept = buffers(self.module)
        about = {
            "format": FORMAT,
            "method": self.method,
            "model": models.spec(self.module),
            "num_classes": self.num_classes,
            "intake": self.intake.to_json(),
            "trained": list(self.params),
            "statistics": list(self.layout.statistics),
            "buffers": list(kept),
            "loss": spelled(self.loss),
            "settings": self.settings,
            "client_weights": self.client_weights.tolist(),
            "history": self.history.to_json(),
        }
        last = {f"{LAST}{name}": value for name, value in (self.last or {}).items()}
        named = {**dict(self.module.named_parameters()), **kept, **last}
        content = tensors_to_bytes(named)
        description = sealed({**about, "sha256": sha256(content).hexdigest()})
        write_whole(folder / "params.safetensors", content)
        write_whole(folder / "run.json", description)
        return folder

    def export(self, path: str | os.PathLike[str], input_shape: Sequence[int] | None = None) -> Path:
        """Write the model, with its preprocessing, to a new file for other programs, and return the file.

        The name determines the format: ``.safetensors``, ``.pt2`` or ``.onnx``
        (:func:`wafl.results.export.export_model`). ``input_shape`` is the shape of one example, for a run that does not
        know it.
        """
        shape = input_shape or self.intake.shape or (models.spec(self.module) or {}).get("input_shape")
        if shape is None:
            raise ValueError("this run does not know the shape of an example: give input_shape=, such as (1, 28, 28)")
        ending = Path(path).suffix.removeprefix(".")
        if ending not in FORMATS:
            raise ValueError(f"{path} must end in .{', .'.join(FORMATS)}, which says the format")
        return export_model(self, path, cast(Format, ending), self.intake.prepare, shape)

    def card(
        self, folder: str | os.PathLike[str], *, scores: Sequence[Tested] = (), certificate: Promised | None = None
    ) -> Path:
        """Write a model card for the Hugging Face Hub to a new folder, and return its ``README.md``.

        Args:
            folder: the folder, new or empty.
            scores: scores from :func:`wafl.evaluate`, with and without attacks.
            certificate: the ``published`` values of a certificate from :func:`wafl.certify`, written next to the card.
        """
        return write_card(self, folder, scores, certificate)

    def report(self, path: str | os.PathLike[str] = "report.html") -> Path:
        """Write a page with the run's rounds, client weights and settings, and return the file.

        :func:`wafl.write_report` adds the model's behavior on its clients' data. Needs ``wafl-learn[report]``.
        """
        return Runs([self]).report(path)

    def __repr__(self) -> str:
        return f"Run({self.method}, {self.history!r})"


class Runs(list[Run]):
    """A list of runs with their varied values, the result of :func:`wafl.sweep`."""

    @property
    def points(self) -> list[dict[str, Any]]:
        """The varied values, by name, one combination per run."""
        return [run.point for run in self]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per run: the varied values, its seed, and the end of its training."""
        rows: list[dict[str, Any]] = []
        for run in self:
            last = run.history[-1].numbers() if run.history else {}
            final = {f"final_{name}": value for name, value in last.items() if name != "seconds"}
            about = {"seed": run.settings["schedule"]["seed"], "rounds": len(run.history)}
            rows.append({"method": run.method, **run.point, **about, **final, "diverged": run.diverged})
        return rows

    def to_pandas(self, *, all: bool = False) -> Any:
        """Return a ``pandas.DataFrame`` (``wafl-learn[pandas]``) of the runs, with columns that differ, or ``all``."""
        return to_frame(lambda: self.rows() if all else varying(self.rows(), keep=("method", "final_loss")))

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Plot loss and achieved radius by round, one line per run; save the figure if given a path."""
        named = {", ".join(f"{name}={value}" for name, value in run.point.items()): run.history for run in self}
        return plot_histories(named, path, self[0].method if self else "WAFL")

    def report(self, path: str | os.PathLike[str] = "report.html") -> Path:
        """Write a page about the runs, as :meth:`Run.report` does for one, and return the file."""
        from wafl.report.page import Page, Study, check_page_packages, write_page

        check_page_packages()
        if not self:
            raise ValueError("there are no runs to report")
        study = Study(self[0].method if len(self) == 1 else repr(self), self.sections())
        return write_page(Page("WAFL report", [study]), Path(path))

    def sections(self) -> list[Any]:
        """Return the sections of a page: the rounds, weights and settings of the runs."""
        import json

        from wafl.report import sections
        from wafl.report.charts import Curve
        from wafl.report.page import Section

        labels = [", ".join([run.method, *(f"{name}={value}" for name, value in run.point.items())]) for run in self]
        methods = {label: run.method for label, run in zip(labels, self, strict=True)}
        quantities: dict[str, list[Curve]] = {}
        for label, run in zip(labels, self, strict=True):
            for key in SHOWN:
                values = run.history.column(key)
                if values and None not in values:
                    curve = Curve(label, [number + 1 for number in run.history.column("round")], values)
                    quantities.setdefault(sections.QUANTITIES[key], []).append(curve)
        weights = dict(zip(labels, (run.client_weights.tolist() for run in self), strict=True))
        names = [f"client {index}" for index in range(len(self[0].client_weights))]
        shown = sections.weights(weights, names, methods)
        settings = json.dumps(self[0].settings, indent=1, default=str)
        shown_sections = [
            sections.rounds(quantities, methods),
            None if shown is None else Section("Client weights", "Whose examples count how much.", [shown]),
            sections.setup("", "", settings, {}),
        ]
        return [section for section in shown_sections if section is not None]

    def _repr_html_(self) -> str:
        return to_html(repr(self), self.rows())

    def __repr__(self) -> str:
        values: dict[str, dict[str, None]] = {}
        for name, value in ((name, value) for point in self.points for name, value in point.items()):
            values.setdefault(name, {})[str(value)] = None
        varied = "; ".join(f"{name}={', '.join(texts)}" for name, texts in values.items())
        return f"Runs({len(self)} of {self[0].method}: {varied})" if self else "Runs(0)"


def buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's saved tensors other than parameters, such as the statistics of BatchNorm."""
    saved = model.state_dict()
    return {name: value for name, value in model.named_buffers() if name in saved}


def with_params(
    model: nn.Module, params: Mapping[str, Tensor], statistics: Mapping[str, Tensor] | None = None
) -> nn.Module:
    """Return a copy of the model with these parameters, which must match its parameters exactly, and statistics."""
    model = copy.deepcopy(model)
    named = dict(model.named_parameters())
    check_names("parameter", named, params)
    for name, value in params.items():
        named[name].data = value.detach().clone()
    for name, value in (statistics or {}).items():
        model.get_buffer(name).data = value.detach().clone()
    return model


def check_names(kind: str, known: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Raise ValueError if tensors have other names or shapes than the model's."""
    for name in known.keys() ^ saved.keys():
        side = "model" if name in known else "file"
        raise ValueError(f"{kind} {name} is only in the {side}: pass the model that was saved")
    for name, value in saved.items():
        if known[name].shape != value.shape:
            raise ValueError(
                f"{kind} {name} has shape {tuple(value.shape)} in the file and {tuple(known[name].shape)} in the model"
            )
