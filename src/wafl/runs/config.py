"""One file describes an experiment: what may stand in it, of which type and within which range."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from wafl.runs.keys import IMPORT, Count, Import, NotNegative, Positive, Section, Seed, Share, one_of
from wafl.runs.method_keys import AnyMethod, Schedule

if TYPE_CHECKING:
    Norm = float
else:
    Norm = one_of(1, 2, math.inf)


def _known_model(value: Any) -> Any:
    if not isinstance(value, str) or (value not in ("mlr", "cnn") and not re.fullmatch(IMPORT, value)):
        raise ValueError("must be 'mlr' or 'cnn', or 'module:function'")
    return value


class Data(Section):
    """The clients: a data set and how it is spread over them, or a function of your own that makes a federation."""

    dataset: str = "digits"
    """digits, mnist, fashion-mnist, usps, svhn, mnist-m, cifar10 or femnist."""
    source: Import | None = None
    """``module:function`` that returns a wafl.Federation, instead of a data set."""
    data_dir: str | None = None
    """Where data sets are; without it $WAFL_DATA, or a cache folder of the user's."""
    num_clients: Count | None = None
    labels_per_client: Count | None = None
    dirichlet: Positive | None = None
    iid: bool | None = None
    by_group: bool | None = None
    sizes: Annotated[list[NotNegative], Field(min_length=2, max_length=2)] | None = None
    """Mean and standard deviation of the clients' sizes."""
    preprocess: Literal["unit", "symmetric", "zscore", "zscore_pooled"] = "unit"
    split: Literal["per_client", "standard"] = "per_client"
    test_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.25
    seed: Seed = 0
    """Of the partition."""


class Model(Section):
    """The model, sized for the data."""

    kind: Annotated[str, BeforeValidator(_known_model)] = "mlr"
    """mlr, cnn, or ``module:function`` that takes the federation and returns a torch.nn.Module."""
    channels: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    """cnn: of its two convolutions."""
    seed: Seed = 0
    """Of its starting parameters."""
    loss: Literal["cross_entropy", "squared_error"] = "cross_entropy"


class Attack(Section):
    """What happens to the test data of attacked clients, in the unit of the data."""

    kind: Literal["none", "pgd", "fgsm", "wasserstein", "autoattack"] = "pgd"
    epsilon: NotNegative = 0.1
    """pgd, fgsm, autoattack: its size."""
    radius: NotNegative = 1.0
    """wasserstein: its size."""
    norm: Norm = math.inf
    steps: Count = 40
    step_size: Positive | None = None


class Evaluation(Section):
    """When and how models are tested."""

    attacked: list[Share] = Field(default=[0.2, 0.4, 0.6, 0.8], min_length=1)
    """Shares of the clients that are attacked."""
    every: Annotated[int, Field(ge=0)] = 0
    """Test on clean data every so many rounds while training; 0 only at the end."""


class EarlyStopping(Section):
    """Stop a run whose metric no longer becomes better."""

    metric: str = "loss"
    patience: Count = 10
    min_delta: NotNegative = 0.0
    largest: bool = False


class Faults(Section):
    """Rates at which clients fail on purpose."""

    dropout: Share = 0.0
    late: Share = 0.0
    nan: Share = 0.0
    infinity: Share = 0.0
    wrong_shape: Share = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**16)] = 0

    @model_validator(mode="after")
    def _at_most_all(self) -> Faults:
        total = self.dropout + self.late + self.nan + self.infinity + self.wrong_shape
        if total > 1.0 + 1e-12:
            raise ValueError(f"the rates sum to {total:g}: they must not exceed 1")
        return self


class Tolerance(Section):
    """How much may fail before a round does."""

    min_replies: Share = 0.5
    attempts: Count = 3
    outsized: Annotated[float, Field(gt=1)] = 100.0


class Flower(Section):
    """How a server on Flower deals with its nodes."""

    nodes: Count = 2
    """Nodes to wait for; in a simulation how many there are."""
    min_nodes: Count = 1
    """How many are enough to start with, if after ``wait`` seconds there are fewer than ``nodes``."""
    wait: Positive = 60.0
    """Seconds to wait for nodes: at the start, and whenever none is left."""
    round_timeout: Positive = 300.0
    """Seconds in which a query must be answered; what comes later does not count."""
    partial_sums: bool = False
    """Let a node send the mean of its clients' updates instead of each of them."""
    exact: bool = True
    """Give a network the very numbers of the embedded engine where a node has one client: at twice the work there."""


class Trackers(Section):
    """Where metrics go beside metrics.jsonl."""

    tensorboard: bool = False
    mlflow: bool = False
    wandb: bool = False
    project: str = "wafl"
    """mlflow: the experiment; wandb: the project."""


RESERVED = {
    "about.json", "checkpoint", "config.toml", "figures", "flower", "metrics.jsonl", "mlflow", "results.json",
    "roster.json", "tensorboard", "wandb",
}  # fmt: skip


class Experiment(Section):
    """Data, model, methods, schedule, attack and evaluation: all that a study is."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")] = "experiment"
    """The folder of its results, below runs/."""
    seeds: list[Seed] = Field(default=[0], min_length=1)
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = "cpu"
    engine: Literal["embedded", "flower-sim", "flower"] = "embedded"
    """Where clients live: in this process, in a simulation on Flower, or on Flower's nodes (`wafl flower app`)."""
    checkpoint_every: Count = 1
    """Rounds between two checkpoints."""
    data: Data = Data()
    model: Model = Model()
    schedule: Schedule = Schedule()
    methods: list[AnyMethod] = Field(min_length=1)
    attack: Attack = Attack()
    evaluation: Evaluation = Evaluation()
    early_stopping: EarlyStopping | None = None
    faults: Faults | None = None
    tolerance: Tolerance | None = None
    trackers: Trackers = Trackers()
    flower: Flower = Flower()

    @model_validator(mode="after")
    def _names_differ(self) -> Experiment:
        names = [method.label.lower() for method in self.methods]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two methods are called {name!r}: give each a name of its own (name = ...)")
            if name in RESERVED:
                raise ValueError(f"a method cannot be called {name!r}, which is the name of a file of the run")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds={self.seeds} must differ")
        return self
