"""Store the facts with which a trained model reads examples as in training, and names its predictions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wafl.base.describe import some
from wafl.base.errors import UnitWarning, warn_user
from wafl.data.bring.arrays import as_array, read_tensor
from wafl.data.bring.folders import is_table, read_inputs
from wafl.data.bring.foreign import Columns, are_images, is_dataset, is_image, read_dataset
from wafl.data.bring.frames import Frame, is_frame
from wafl.data.mistakes import what_is
from wafl.data.preprocessing import STANDARDIZED, Preprocessing

REMEDY = "give an array of examples, a frame or a data set"


def _warn_if_standardized(x: torch.Tensor, prepared: torch.Tensor) -> None:
    """Warn if examples look standardized before they are, and not after."""

    def looks(values: torch.Tensor) -> bool:
        mean, deviation = values.mean(0), values.std(0, correction=0)
        return bool((mean.abs() < 1.0).all() and ((deviation < 3.0) & ((deviation > 0.3) | (deviation == 0.0))).all())

    if len(x) > 7 and looks(x) and not looks(prepared):
        warn_user(
            "x looks standardized already, and the run standardizes it again: give raw values, such as "
            "clients.test.raw and not clients.test.x",
            UnitWarning,
        )


@dataclass(frozen=True)
class Intake:
    """The names of classes and inputs, if they have any, the preparation of bytes, and the shape of an example."""

    classes: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    prepare: Preprocessing = field(default_factory=Preprocessing)
    shape: tuple[int, ...] | None = None

    def read(self, x: Any, like: Tensor) -> Tensor:
        """Convert examples of any kind that a federation accepts to ``like``; bytes are prepared as in training."""
        if is_dataset(x) or are_images(x):
            x, _ = read_dataset(x, Columns(self.columns), labeled=False)
        elif is_table(x):
            x = read_inputs(x, self.columns)
        elif is_frame(x):
            frame = Frame(x)
            x = frame.inputs(self.columns or frame.names)
        elif isinstance(x, str | Mapping) or x is None:
            raise ValueError(f"x is {what_is(x)}: {REMEDY}")
        elif is_image(x):
            raise ValueError(f"x is one image, {x.width} x {x.height}: give a list of images, [x]")
        try:
            tensor = read_tensor(as_array(x))
        except (TypeError, ValueError) as error:
            raise ValueError(f"x is {what_is(x)}: {REMEDY}, without labels ({error})") from error
        if self.prepare.takes_numbers and tensor.shape[1:] == self.shape:
            prepared = self.prepare(tensor, torch.float64)
            _warn_if_standardized(tensor.to(torch.float64), prepared)
            return prepared.to(like)
        raw = tensor.dtype == torch.uint8 and self.prepare.name not in ("none", STANDARDIZED)
        return (self.prepare(tensor, like.dtype) if raw else tensor).to(like)

    def check_clients(self, prepare: Preprocessing) -> None:
        """Raise ValueError for clients whose columns are not standardized by the numbers of the training."""
        mine = self.prepare
        if not (mine.takes_numbers or prepare.takes_numbers) or mine.name == "none" == prepare.name:
            return
        pairs = ((mine.shift, prepare.shift), (mine.scale, prepare.scale))
        alike = all(a is not None and b is not None and torch.equal(a.cpu(), b.cpu()) for a, b in pairs)
        if mine.name != prepare.name or not alike:
            raise ValueError(
                "these clients are not standardized by the means and standard deviations that the model was trained "
                "with: use clients.prepared_by(run.intake.prepare), with clients as they are without standardize=True"
            )

    def compare(self, shape: tuple[int, ...]) -> str:
        """Describe a shape of examples that the model does not accept, and the shape of its training examples."""
        given = f"examples of shape {shape}"
        if self.shape is None or shape == self.shape:
            return f"{given}, which the model does not take"
        columns = f" (the columns {some(self.columns, 8)})" if self.columns is not None else ""
        return f"{given}, and the model was trained on examples of shape {self.shape}{columns}"

    def name(self, labels: Tensor) -> Tensor | NDArray[np.str_]:
        """Return the classes' names, if they have any; otherwise the numbers."""
        return labels if self.classes is None else np.array(self.classes)[labels.cpu().numpy()]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        names = {"classes": self.classes, "columns": self.columns}
        return {**names, "prepare": self.prepare.to_json(), "shape": self.shape}

    @classmethod
    def from_json(cls, about: Mapping[str, Any] | None) -> Self:
        """Return the intake from the values of :meth:`to_json`; an empty one for a run without them."""
        if about is None:
            return cls()
        classes, columns, shape = (
            None if about.get(name) is None else tuple(about[name]) for name in ("classes", "columns", "shape")
        )
        return cls(classes, columns, Preprocessing.from_json(about["prepare"]), shape)
