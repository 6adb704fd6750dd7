"""One file describes an experiment: what may stand in it, of which type and within which range."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)

T = TypeVar("T")


def _of_usual_size(value: float) -> float:
    if value != 0 and not 1e-30 <= abs(value) <= 1e30:  # float32 could not hold its square
        raise ValueError("must lie between 1e-30 and 1e30")
    return value


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), AfterValidator(_of_usual_size)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_of_usual_size)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Box = Annotated[list[float], Field(min_length=2, max_length=2)]
Import = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*(\.\w+)*$")]
"""``module:function``, found from the folder of the file or among what is installed."""


def _norm(value: Any) -> Any:
    return math.inf if value == "inf" else value


def _one_of_the_norms(value: Any) -> Any:
    if isinstance(value, bool) or value not in (1, 2, math.inf):
        raise ValueError("must be 1, 2 or inf")
    return float(value)


Norm = Annotated[
    float,
    BeforeValidator(_one_of_the_norms),
    BeforeValidator(_norm),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"const": "inf"}]}),  # JSON has no infinity
]


def _no_truth(value: Any) -> Any:
    if isinstance(value, bool):  # which Python takes for 1
        raise ValueError("must be 1 or 2")
    return value


def _value_or_list(value: Any) -> str:
    return "list" if isinstance(value, list) else "value"


Swept = Annotated[
    Annotated[T, Tag("value")] | Annotated[Annotated[list[T], Field(min_length=1)], Tag("list")],
    Discriminator(_value_or_list),
]
"""A value, or a list of values: one run each."""


def _known_model(value: Any) -> Any:
    if not isinstance(value, str) or (
        value not in ("mlr", "cnn") and not re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*(\.\w+)*", value)
    ):
        raise ValueError("must be 'mlr' or 'cnn', or 'module:function'")
    return value


FixedRule = Annotated[
    Annotated[Literal["by_examples", "uniform"], Tag("value")] | Annotated[list[NotNegative], Tag("list")],
    Discriminator(_value_or_list),
]
"""A rule for the client weights by name, or one weight a client."""
AnyRule = Annotated[
    Annotated[Literal["by_examples", "uniform", "agnostic", "snapshot"], Tag("value")]
    | Annotated[list[NotNegative], Tag("list")],
    Discriminator(_value_or_list),
]


class Section(BaseModel):
    """Nothing unknown, nothing of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


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


class Schedule(Section):
    """How clients work together; a method may set any of these for itself, and a list of values is a sweep."""

    rounds: Count | None = None
    cohort: Swept[Count] | None = None
    """Clients asked in a round; without it all."""
    local_steps: Swept[Count] | None = None
    local_epochs: Swept[Count] | None = None
    batch_size: Swept[Count] | None = None
    learning_rate: Swept[Positive] | None = None
    momentum: Swept[Annotated[float, Field(ge=0, lt=1)]] | None = None
    weight_decay: Swept[NotNegative] | None = None
    server_learning_rate: Swept[Positive] | None = None


class _Method(Schedule):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")] | None = None
    """What its results are called; without it the method's name in small letters."""


class FedAvg(_Method):
    method: Literal["FedAvg"]
    client_weights: FixedRule | None = None


class WAFL(_Method):
    method: Literal["WAFL"]
    gamma: Swept[Positive] | None = None
    radius: Swept[Positive] | None = None
    norm: Swept[Norm] | None = None
    power: Swept[Annotated[Literal[1, 2], BeforeValidator(_no_truth)]] | None = None
    label_cost: Swept[Annotated[float, Field(gt=0)]] | None = None
    steps: Swept[Count] | None = None
    tolerance: Swept[Annotated[float, Field(ge=0, lt=1)]] | None = None
    restarts: Swept[Annotated[int, Field(ge=0)]] | None = None
    bounds: Box | None = None
    strict: bool | None = None
    client_weights: AnyRule | None = None
    weights_step: Swept[Positive] | None = None


class FedPGM(_Method):
    method: Literal["FedPGM"]
    epsilon: Swept[NotNegative] | None = None
    step_size: Swept[Positive] | None = None
    steps: Swept[Count] | None = None
    norm: Swept[Norm] | None = None
    random_start: bool | None = None
    bounds: Box | None = None
    client_weights: FixedRule | None = None


class FedFGSM(_Method):
    method: Literal["FedFGSM"]
    epsilon: Swept[NotNegative] | None = None
    norm: Swept[Norm] | None = None
    bounds: Box | None = None
    client_weights: FixedRule | None = None


class FedRobust(_Method):
    method: Literal["FedRobust"]
    penalty: Swept[Positive] | None = None
    step_size: Swept[Positive] | None = None
    client_weights: FixedRule | None = None


class AFL(_Method):
    method: Literal["AFL"]
    weights_step: Swept[Positive] | None = None


class DRFA(_Method):
    method: Literal["DRFA"]
    weights_step: Swept[Positive] | None = None


AnyMethod = Annotated[FedAvg | WAFL | FedPGM | FedFGSM | FedRobust | AFL | DRFA, Field(discriminator="method")]


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

    attacked: Annotated[list[Share], Field(min_length=1)] = [0.2, 0.4, 0.6, 0.8]
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
    seeds: Annotated[list[Seed], Field(min_length=1)] = [0]
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = "cpu"
    engine: Literal["embedded", "flower-sim", "flower"] = "embedded"
    """Where clients live: in this process, in a simulation on Flower, or on Flower's nodes (`wafl flower app`)."""
    checkpoint_every: Count = 1
    """Rounds between two checkpoints."""
    data: Data = Data()
    model: Model = Model()
    schedule: Schedule = Schedule()
    methods: Annotated[list[AnyMethod], Field(min_length=1)]
    attack: Attack = Attack()
    evaluation: Evaluation = Evaluation()
    early_stopping: EarlyStopping | None = None
    faults: Faults | None = None
    tolerance: Tolerance | None = None
    trackers: Trackers = Trackers()
    flower: Flower = Flower()

    @model_validator(mode="after")
    def _names_differ(self) -> Experiment:
        names = [(method.name or method.method).lower() for method in self.methods]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two methods are called {name!r}: give each a name of its own (name = ...)")
            if name in RESERVED:
                raise ValueError(f"a method cannot be called {name!r}, which is the name of a file of the run")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds={self.seeds} must differ")
        return self
