"""Define the file that describes an experiment: its keys, their types and their ranges."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from wafl.attacks import ATTACKS
from wafl.base.extras import require
from wafl.base.options import Choice, Option
from wafl.callbacks import EarlyStopping
from wafl.config.keys import (
    Count,
    Import,
    Norm,
    NotNegative,
    Positive,
    Section,
    Seed,
    Seeds,
    Share,
    named,
    value_or_list,
)
from wafl.config.known import describe_option, options_by_name
from wafl.config.method_keys import AnyMethod, Schedule
from wafl.config.tables import FromTable, make_table, type_of
from wafl.receipts.questions import Questions
from wafl.results.personalize import Personalization
from wafl.shifts import MOVES
from wafl.train.privacy.mechanism import Privacy
from wafl.train.trust.admission import Tolerance
from wafl.train.trust.caps import Caps
from wafl.train.trust.faults import Faults

ATTACK_OPTIONS = options_by_name(
    {name: kind.settable() for name, kind in ATTACKS.items()}, first=[kind.settings.size for kind in ATTACKS.values()]
)
"""For each key of the section ``attack`` besides the kind: the attacks that have this option."""

if TYPE_CHECKING:
    AttackKind = str
    ShiftKind = str
else:
    AttackKind = Literal[("none", *ATTACKS)]
    ShiftKind = Literal[tuple(MOVES)]


def _differs(owners: Mapping[str, Option]) -> bool:
    """Return whether the attacks that have an option disagree about its default."""
    return len({option.default for option in owners.values()}) > 1


class _AttackSection(Section):
    """The part of the section ``attack`` that does not depend on the list of attacks."""

    kind: AttackKind = "pgd"
    """The attack."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_its_kind(cls, values: Any) -> Any:
        """Fill in defaults that depend on the kind, so that a saved experiment has the values in force."""
        if not isinstance(values, dict):
            return values
        given = cast("dict[str, Any]", values)
        kind = str(given.get("kind", "pgd"))
        missing = [name for name, owners in ATTACK_OPTIONS.items() if _differs(owners) and given.get(name) is None]
        owners = {name: ATTACK_OPTIONS[name] for name in missing}
        chosen = {name: each.get(kind, next(iter(each.values()))) for name, each in owners.items()}
        return {**given, **{name: option.default for name, option in chosen.items()}}


def _attack_key(owners: Mapping[str, Option]) -> Any:
    """Return the type, the default and the description of a key; a choice takes the values of every attack."""
    option = next(iter(owners.values()))
    choices = {value for each in owners.values() if isinstance(each.limits, Choice) for value in each.limits.values}
    kind = type_of(replace(option, limits=Choice(tuple(sorted(choices)))) if choices else option)
    default = None if _differs(owners) else option.default
    return (kind if default is not None else kind | None, Field(default, description=describe_option(owners)))


if TYPE_CHECKING:

    class Attack(_AttackSection):
        """The attack on clients' test examples."""

        def __getattr__(self, name: str) -> Any: ...
else:
    Attack = make_table(
        "Attack",
        _AttackSection,
        "What happens to the test data of attacked clients; sizes are in the unit of the data.",
        {name: _attack_key(owners) for name, owners in ATTACK_OPTIONS.items()},
    )


MODELS = ("mlr", "cnn", "lipschitz")
LOSS_NAMES = ["cross_entropy", "squared_error", "margin(1, 0.25)"]


def _known_loss(value: str) -> str:
    from wafl.tasks.losses import output_loss

    output_loss(value)
    return value


class Data(Section):
    """The clients: a data set and its division among clients, or your own function that returns a federation."""

    dataset: str = "digits"
    """digits, mnist, fashion-mnist, usps, svhn, mnist-m, cifar10 or femnist, or natural data (``wafl data list``)."""
    source: Import | None = None
    """``module:function`` that returns a wafl.Federation, instead of a data set."""
    data_dir: str | None = None
    """The folder of data sets; by default $WAFL_DATA, or a cache folder of this user."""
    num_classes: Count | None = None
    """The number of classes, for nodes that lack examples of some; by default the classes on every node."""
    num_clients: Count | None = None
    """The number of clients; with by_group, the number of groups (by default all)."""
    labels_per_client: Count | None = None
    """The number of labels per client, with a random amount of each."""
    dirichlet: Positive | None = None
    """The alpha of a Dirichlet distribution, from which each label's shares over clients are drawn."""
    iid: bool | None = None
    """Give every client an equal random share."""
    by_group: bool | None = None
    """One client per group (writer, subject, hospital), as in the source; the default for natural data."""
    sizes: Annotated[list[NotNegative], Field(min_length=2, max_length=2)] | None = None
    """With labels_per_client: mean and standard deviation of the clients' sizes; the remaining data are not used."""
    preprocess: Literal["unit", "symmetric", "zscore", "zscore_pooled"] | None = None
    """The scale of the inputs; every epsilon and radius is in its unit. Default: unit for images, otherwise zscore."""
    split: Literal["per_client", "standard"] = "per_client"
    """per_client lets each client hold out a fraction of its data; standard uses the data set's test examples."""
    test_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.25
    """The fraction that each client holds out with per_client."""
    seed: Seed = 0
    """The seed of the partition."""
    unseen: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The share of the clients that never train; tables show the models' results on their data."""
    unseen_seed: Seed = 0
    """The seed for choosing the clients that never train."""
    unseen_shift: ShiftKind | None = None
    """The shift of the examples of the clients that never train: one of :mod:`wafl.shifts`."""
    unseen_severity: NotNegative = 1.0
    """The severity of this shift; 0 does not change the examples."""


class Model(Section):
    """The model, sized for the data."""

    kind: Annotated[str, named(MODELS, "'mlr', 'cnn' or 'lipschitz', or 'module:function'", or_import=True)] = "mlr"
    """mlr, cnn, lipschitz, or ``module:function`` that takes the federation and returns a torch.nn.Module."""
    channels: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    """cnn: the channels of its two convolutions."""
    width: Count | None = None
    """lipschitz: the channels of its first convolutions, or the units of its hidden layers."""
    depth: Count | None = None
    """lipschitz: its convolutions at each size of the images, or its hidden layers."""
    seed: Seed = 0
    """The seed of its starting parameters."""
    loss: Annotated[str, AfterValidator(_known_loss), Field(examples=LOSS_NAMES)] = "cross_entropy"
    """The loss that clients minimize: cross_entropy, squared_error, or margin(offset, temperature)."""


class Evaluation(Section):
    """The tests of models."""

    attacked: list[Share] = Field(default=[0.2, 0.4, 0.6, 0.8], min_length=1)
    """The shares of the clients that are attacked."""
    every: Annotated[int, Field(ge=0)] = 0
    """While training, test on clean data once per this many rounds; 0 tests only at the end."""
    certified: Positive | None = None
    """The radius of the W_2 ball around test examples in which accuracy (for a regression, the loss) is certified.

    The model must be linear or have known layers.
    """
    certified_norm: Norm = 2.0
    """The norm of that ball."""
    check_optimum: bool = False
    """Warn at the end of training if ten joint steps of all clients would lower their objective.

    Clients on nodes then send their gradients.
    """


class Between(Section):
    """Numbers from low to high, uniform in the logarithm."""

    low: NotNegative
    """The lowest number."""
    high: Positive
    """The highest number."""


Searched = Annotated[
    Annotated[Between, Tag("value")] | Annotated[list[int | float | str | bool], Tag("list")],
    Discriminator(value_or_list),
]
"""A list of values to choose from, or the ends of a range; an empty list keeps each method's value."""


class Tune(Section):
    """The options of ``wafl tune``, which chooses the options of each method; ``wafl run`` does not use them."""

    trials: Annotated[int, Field(ge=2, le=10**6)] = 16
    """The number of settings to try for each method; the first is the file's setting."""
    held_out: Literal["examples", "clients"] = "examples"
    """Judge on a share of every client's training examples, or of the clients; never on test examples."""
    share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The share that is held out."""
    metric: Literal["accuracy", "loss"] | None = None
    """The criterion; by default accuracy, and for a regression the loss."""
    attacked: list[Share] | None = Field(default=None, min_length=1)
    """The shares of the clients that the attack moves; a trial's value is the mean over them.

    The default is 0, which is clean data, and the shares of the evaluation.
    """
    rounds: Count | None = None
    """The maximum rounds of a trial, by default the method's rounds.

    A method with its own rounds gets the same fraction of them.
    """
    seed: Seed = 0
    """The seed of the held-out part, the settings and, without seeds, the trials' training."""
    seeds: Seeds | None = None
    """Train every setting once per seed, and judge it by the mean; by default only with the seed above."""
    space: dict[str, Searched] = Field(default={})
    """By option of a method or the schedule: a list of values, or { low = ..., high = ... }."""


Task = Literal["train", "certify", "mixture"]


class Flower(Section):
    """The settings of a server on Flower for its nodes."""

    tasks: list[Task] = Field(default=["train"], min_length=1)
    """The tasks that nodes answer from their data: train, certify, mixture.

    Tasks about the next client are declared by [questions], and personalization by [personalize].
    """
    nodes: Count = 2
    """The number of nodes to wait for, or the number of nodes in a simulation."""
    min_nodes: Count = 1
    """The number of nodes that is enough to start with after ``wait`` seconds."""
    wait: Positive = 60.0
    """The seconds to wait for nodes at the start, and whenever none is left."""
    round_timeout: Positive = 300.0
    """The seconds in which a query must be answered; later replies do not count."""
    partial_sums: bool = False
    """Whether a node sends the mean of its clients' updates instead of each update."""
    at_once: Count = 1000
    """The maximum number of nodes that work at the same time; in a simulation at most 64."""
    exact: bool = True
    """Give a network exactly the embedded engine's numbers on nodes with a single client, at twice the work there."""
    names_by_key: bool = True
    """Whether a client's name belongs to the key of the node that first brought it.

    False lets another node take over a name whose node is gone, for trials without keys.
    """


class Trackers(Section):
    """The destinations of metrics besides metrics.jsonl."""

    tensorboard: bool = False
    """Write event files for TensorBoard."""
    mlflow: bool = False
    """Log to MLflow."""
    wandb: bool = False
    """Log to Weights & Biases."""
    project: str = "wafl"
    """The name of the experiment in MLflow and of the project in wandb."""

    def check(self) -> None:
        """Raise an error for trackers whose packages are missing, before anything is written."""
        for name in ("tensorboard", "mlflow", "wandb"):
            if getattr(self, name):
                require(name, extra=name, what=f"trackers.{name} = true")


RESERVED = {
    "about.json", "checkpoint", "config.toml", "figures", "flower", "metrics.jsonl", "mlflow", "results.json",
    "nodes.json", "roster.json", "tensorboard", "wandb",
}  # fmt: skip


class Experiment(Section):
    """Data, model, methods, schedule, attack and evaluation: everything that defines a study."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")] = "experiment"
    """The folder of the study, below runs/."""
    seeds: Seeds = Field(default=[0])
    """One run per seed; all runs train side by side."""
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = "cpu"
    """The device on which lanes are computed."""
    engine: Literal["embedded", "flower-sim", "flower"] = "embedded"
    """The place of the clients: this process, a Flower simulation, or Flower nodes (`wafl flower app`)."""
    checkpoint_every: Count = 1
    """Rounds between two checkpoints."""
    checkpoint_seconds: Positive | None = None
    """Write a checkpoint earlier if this much time has passed since the last."""
    data: Data = Data()
    model: Model = Model()
    schedule: Schedule = Schedule()
    methods: list[AnyMethod] = Field(min_length=1)
    attack: Attack = Attack()
    evaluation: Evaluation = Evaluation()
    early_stopping: Annotated[EarlyStopping, FromTable(EarlyStopping)] | None = None
    tune: Tune | None = None
    faults: Annotated[Faults, FromTable(Faults)] | None = None
    tolerance: Annotated[Tolerance, FromTable(Tolerance)] | None = None
    privacy: Annotated[Privacy, FromTable(Privacy)] | None = None
    caps: Annotated[Caps, FromTable(Caps)] = Caps()
    questions: Annotated[Questions, FromTable(Questions)] | None = None
    personalize: Annotated[Personalization, FromTable(Personalization)] | None = None
    trackers: Trackers = Trackers()
    flower: Flower = Flower()

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [method.label.lower() for method in self.methods]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two methods are called {name!r}: give each its own name (name = ...)")
            if name in RESERVED:
                raise ValueError(f"a method cannot be called {name!r}: that is the name of a file of the study")
        return self

    @model_validator(mode="after")
    def _nobody_looks_at_private_clients(self) -> Self:
        if self.privacy is not None and self.tune is not None:
            raise ValueError("tune looks at clients without noise, and privacy forbids that: leave one of them out")
        if self.privacy is not None and self.evaluation.check_optimum:
            raise ValueError("evaluation.check_optimum looks at gradients without noise: leave it out, or privacy")
        return self
