"""Turn an experiment file into a plan: clients, model, methods, attack."""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from wafl import models, weights
from wafl.attacks import ATTACKS, Attack, BoundedAttack, Population
from wafl.base.bounds import Bounds, check_bounds
from wafl.base.checks import check_steps
from wafl.base.describe import some
from wafl.base.errors import ConfigError
from wafl.callbacks import EVALUATED
from wafl.config import experiment as config
from wafl.config.clients import make_clients
from wafl.config.method_keys import CENTER, KINDS, PARTS, MethodTable, OwnMethod
from wafl.config.own_code import imported, imports, own_code
from wafl.config.unseen import check_unseen, shifted
from wafl.data.federation import Federation
from wafl.evaluation.evaluate import present_clients
from wafl.methods import METHODS, Method
from wafl.models import Described
from wafl.objectives.surrogate import single_lane
from wafl.results.history import NUMBERS
from wafl.train.chosen_radius import check_undecided
from wafl.train.clients import Clients
from wafl.train.embedded import Embedded, find_device
from wafl.train.fit import make_specs
from wafl.train.loop import Trainer
from wafl.train.privacy.mechanism import PrivateClients, check_private
from wafl.train.spec import Spec
from wafl.train.trust.admission import Tolerance

SCHEDULE = tuple(config.Schedule.model_fields)
ROUND = ("round", "loss", "seconds", "replies", "excluded", "attempts", "shortened", "limited")
TAKEN = {*SCHEDULE, "seed", "method", *ROUND}
"""The existing keys of a metrics line, which a swept option of your own method must not use."""


@dataclass(frozen=True)
class Entry:
    """One method of an experiment, and the name of its results.

    ``grid`` contains the swept values, by name; ``method`` uses the first of several values. ``schedule`` is the rest
    of the schedule, without the seed. ``make`` builds your own method from its swept arguments.
    """

    name: str
    method: Method
    grid: dict[str, list[Any]]
    schedule: dict[str, Any]
    make: Callable[..., Method] | None = None

    @property
    def title(self) -> str:
        """The name of the method in tables: its own, unless the file names it."""
        return self.method.name if self.name == self.method.name.lower() else self.name

    def specs(self, seeds: Sequence[int]) -> list[Spec]:
        """Return one run for every swept combination, with the seed varying fastest."""
        grid = {**self.grid, "seed": list(seeds)}
        if self.make is None:
            return make_specs(self.method, grid, self.schedule)
        arguments = [name for name in grid if name not in TAKEN]
        timing = {name: values for name, values in grid.items() if name in TAKEN}
        runs: list[Spec] = []
        for values in itertools.product(*(grid[name] for name in arguments)):
            point = dict(zip(arguments, values, strict=True))
            specs = make_specs(self.make(**point), timing, self.schedule)
            runs += [replace(spec, point={**point, **(spec.point or {})}) for spec in specs]
        return runs


FindClients = Callable[[Sequence[Entry]], Clients]
"""A function that returns the clients of these methods if they are not in this process."""


@dataclass(frozen=True)
class Plan:
    """All parts of a study, built and checked before any work."""

    experiment: config.Experiment
    clients: Clients
    federation: Federation | None
    """The clients' examples; None if they are elsewhere."""
    model: nn.Module
    entries: list[Entry]
    attack: Attack | None
    unseen: Federation | None = None
    """Clients that never train."""

    @property
    def extensible(self) -> bool:
        """Whether a finished study can get more rounds: nodes forget the clients' memory, this process does not."""
        private = self.experiment.privacy is not None  # its noise was found for its rounds
        return self.experiment.engine == "embedded" and isinstance(self.clients, Embedded) and not private

    def trainer(self) -> Trainer:
        """Return the trainer of the plan, with privacy if the experiment has it."""
        privacy = self.experiment.privacy
        clients = self.clients if privacy is None else cast(Clients, PrivateClients(self.clients, privacy))
        return Trainer(self.model, clients, self.experiment.model.loss, None)

    @property
    def who(self) -> str:
        """The clients in words: clients that train, clients that never train, and missing clients."""
        unseen = self.unseen or some(self.clients.roster.unseen)
        unseen = f"\nunseen: {unseen}" if unseen else ""
        absent = f"\nmissing: {self.clients.absent}" if self.clients.absent else ""
        return f"{self.federation or self.clients.roster}{unseen}{absent}"

    @property
    def testers(self) -> Clients:
        """The clients that test models: the federation here, or the clients themselves if they keep their examples."""
        if self.federation is None:
            return self.clients
        return Embedded(self.federation, torch.device("cpu"), unseen=self.unseen)


def make_plan(
    experiment: config.Experiment,
    folder: Path | None = None,
    find_clients: FindClients | None = None,
    *,
    trust: bool = True,
) -> Plan:
    """Build and check all parts of an experiment before any work.

    ``module:function`` is imported from ``folder``, the folder of the file. ``find_clients`` finds clients that are not
    in this process. ``trust`` allows your own functions to run for the first time.
    """
    experiment.trackers.check()
    attack = make_attack(experiment.attack)
    _check_stopping(experiment)
    check_unseen(experiment)
    if experiment.faults is not None and experiment.engine != "embedded":
        raise ConfigError(f"faults need engine = 'embedded': leave them out of engine = {experiment.engine!r}")
    with own_code(folder, imports(experiment), trust=trust):
        entries = [make_entry(method, experiment.schedule) for method in experiment.methods]
        federation = make_clients(experiment.data) if experiment.engine != "flower" else None
        unseen = None
        if federation is not None and experiment.data.unseen is not None:
            federation, unseen = federation.hold_out(experiment.data.unseen, seed=experiment.data.unseen_seed)
            unseen = shifted(unseen, experiment.data)
        if federation is not None:
            present_clients(federation)
        clients = find_clients(entries) if find_clients is not None else embedded(experiment, federation)
        model = make_model(experiment.model, federation or clients.roster)
    experiment = _resolved(experiment, federation)
    attack = None if attack is None else attack.within(clients.roster.bounds)
    plan = Plan(experiment, clients, federation, model, entries, attack, unseen)
    if attack is not None:
        tests = len(experiment.evaluation.attacked) * sum(len(entry.specs(experiment.seeds)) for entry in entries)
        check_steps(f"attack.steps = {experiment.attack.steps}", experiment.attack.steps * tests, "lower attack.steps")
    if federation is None and attack is not None and not attack.pointwise:
        kind, pointwise = experiment.attack.kind, [name for name, each in ATTACKS.items() if each.pointwise]
        raise ConfigError(
            f"attack.kind = {kind!r} moves the examples of all clients together: on nodes use {_either(pointwise)}, "
            "or 'none'"
        )
    trainer = plan.trainer()
    for entry in entries:
        specs = entry.specs(experiment.seeds)
        for spec in specs if experiment.privacy is not None else []:
            check_private(entry.name, spec)
        check_undecided(trainer, specs)
        trainer.check(specs)
    if federation is not None:
        _try_attack(plan.attack, plan, federation)
    return plan


def _resolved(experiment: config.Experiment, federation: Federation | None) -> config.Experiment:
    """Return the experiment with the preprocessing in force, if the data set chose it."""
    if experiment.data.preprocess is not None or federation is None or federation.recipe is None:
        return experiment
    data = experiment.data.model_copy(update={"preprocess": federation.recipe["partition"]["preprocess"]})
    return experiment.model_copy(update={"data": data})


def _try_attack(attack: Attack | None, plan: Plan, clients: Federation) -> None:
    """Raise ConfigError before training if the attack cannot test the model, such as an attack on integers."""
    if not isinstance(attack, BoundedAttack):
        return
    x, y = (values[:1] for values in clients.test.of(present_clients(clients)[0]))
    problem, x, y = single_lane(plan.model, x, y, plan.experiment.model.loss, clients.num_classes)
    try:
        attack.moved(problem, Population(x, y))
    except ValueError as error:
        raise ConfigError(f"attack: {error}; or attack.kind = 'none'") from error


def embedded(experiment: config.Experiment, federation: Federation | None) -> Embedded:
    """Return a federation for training, with the experiment's device, faults and tolerance."""
    if federation is None:
        raise ConfigError(
            "engine = 'flower' has its clients on nodes: `wafl flower app` makes an app that trains with them, and "
            "`flwr run APP -c 'folder=\"STUDY\"'` resumes a study"
        )
    spared = None if experiment.tolerance is None else make_tolerance(experiment)
    return Embedded(federation, find_device(experiment.device), None, experiment.faults, spared, caps=experiment.caps)


def make_tolerance(experiment: config.Experiment, *, remote: bool = False) -> Tolerance:
    """Return the tolerance; with privacy, no client's update affects the weight of another client."""
    tolerance = experiment.tolerance or Tolerance()
    if experiment.privacy is not None:
        return replace(tolerance, outsized=math.inf, clip=math.inf, clip_loss=None)
    return tolerance.settled(remote=True) if remote else tolerance


def _check_stopping(experiment: config.Experiment) -> None:
    stopping = experiment.early_stopping
    known = {*NUMBERS, *(EVALUATED[:2] if experiment.evaluation.every else ())}
    if stopping is not None and stopping.metric not in known:
        hint = "; it needs evaluation.every" if stopping.metric in EVALUATED[:2] else ""
        raise ConfigError(f"early_stopping.metric = {stopping.metric!r}: use one of {', '.join(sorted(known))}{hint}")


def make_model(model: config.Model, clients: Described) -> nn.Module:
    """Return the model of an experiment, sized for its clients."""
    if model.kind == "mlr":
        return models.mlr(clients)
    if model.kind == "cnn":
        first, second = model.channels or (32, 64)
        return models.cnn(clients, channels=(first, second), seed=model.seed)
    if model.kind == "lipschitz":
        return models.lipschitz(clients, width=model.width or 32, depth=model.depth or 3, seed=model.seed)
    with torch.random.fork_rng(devices=[]):  # a resume needs the same start
        torch.manual_seed(model.seed)
        made = imported("model.kind", model.kind)(clients)
    if not isinstance(made, nn.Module):
        raise ConfigError(f"model.kind = {model.kind!r} returned {type(made).__name__}, not a torch.nn.Module")
    return made


def make_entry(entry: MethodTable, common: config.Schedule) -> Entry:
    """Return the entry of a method's table: the method, its swept values, and its schedule."""
    make = _own_method(entry) if isinstance(entry, OwnMethod) else None
    method, swept = _make_method(entry) if make is None else (make(), _lists(cast("OwnMethod", entry).options))
    schedule = {**_common(entry, method, common), **_values(entry, SCHEDULE)}
    if "rounds" not in schedule:
        raise ConfigError("schedule.rounds is missing: how many rounds to train")
    lists = _lists(schedule)
    for name, values in {**swept, **lists}.items():
        if any(value in values[:index] for index, value in enumerate(values)):
            raise ConfigError(f"{entry.label}: {name} = {values} has a value twice: give each once")
    single = {name: value for name, value in schedule.items() if name not in lists}
    return Entry(entry.label, method, {**swept, **lists}, single, make)


def _own_method(entry: OwnMethod) -> Callable[..., Method]:
    """Return a function that builds your own method, by default from the first of each list of values."""
    key = f"{entry.label}.method"
    function = imported(key, entry.method)
    for name, values in _lists(entry.options).items():
        if name in TAKEN:
            raise ConfigError(f"{entry.label}.options.{name} cannot be swept under this name: call it something else")
        plain = (isinstance(value, int | float | str) and re.fullmatch(r"[\w.+-]+", str(value)) for value in values)
        if not values or not all(plain):  # each is part of a folder's name
            raise ConfigError(f"{entry.label}.options.{name} = {values}: a sweep is a list of numbers or plain words")

    def make(**point: Any) -> Method:
        made = function(**{**_firsts(entry.options), **point})
        if not isinstance(made, Method):
            raise ConfigError(f"{key} = {entry.method!r} returned {type(made).__name__}, not a wafl.Method")
        return made

    return make


def _make_method(entry: MethodTable) -> tuple[Method, dict[str, list[Any]]]:
    """Return the method, and its options with several values."""
    fields, others = type(entry).model_fields, {*SCHEDULE, *PARTS, "name", "method"}
    values = _values(entry, [name for name in fields if name not in others])  # in order: a resume needs the same grid
    bounds: dict[str, Any] = {"bounds": _bounds(values.pop("bounds"))} if "bounds" in values else {}
    matrix: dict[str, Any] = {"cost_matrix": values.pop("cost_matrix")} if "cost_matrix" in values else {}  # no sweep
    swept, options = _lists(values), {**_firsts(values), **bounds, **matrix}
    if "client_weights" in type(entry).model_fields:
        options |= _weights(getattr(entry, "client_weights", None), options.pop("weights_step", None))
    if getattr(entry, CENTER, None) is not None:
        options[CENTER] = _center(getattr(entry, CENTER))
    for slot in ("server", "local"):
        if (table := getattr(entry, slot, None)) is not None:
            options[slot] = _part(f"{entry.label}.{slot}", slot, table)
    try:
        return METHODS[entry.method](**options), swept
    except TypeError as error:  # your own part is not one
        raise ConfigError(f"{entry.label}: {error}") from error


def _lists(options: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {name: value for name, value in options.items() if isinstance(value, list)}


def _values(entry: MethodTable, names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(entry, name)) is not None}


def _firsts(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value[0] if isinstance(value, list) else value for name, value in options.items()}


def _part(key: str, slot: str, table: Any) -> Any:
    """Return a part of a method from its table; your own part comes from its named function."""
    if table.kind not in KINDS[slot]:
        return imported(f"{key}.kind", table.kind)(**table.options)
    options = table.model_dump(exclude_none=True, exclude={"kind", "optimizer"})
    if (inner := getattr(table, "optimizer", None)) is not None:
        options["optimizer"] = _part(f"{key}.optimizer", "optimizer", inner)
    if CENTER in options:
        options[CENTER] = _center(options[CENTER])
    return KINDS[slot][table.kind](**options)


def _common(entry: MethodTable, method: Method, common: config.Schedule) -> dict[str, Any]:
    """Return the common schedule, adapted to the method; AFL and Scaff-PD need all clients, and AFL one step."""
    schedule = common.model_dump(exclude_none=True)
    alone = method.client_weights.takes_one_step
    if method.client_weights.asks_everyone:
        schedule.pop("cohort", None)
    if alone or entry.local_steps is not None or entry.local_epochs is not None:
        schedule.pop("local_steps", None)
        schedule.pop("local_epochs", None)
    if alone and entry.local_steps is None and entry.local_epochs is None:
        schedule["local_steps"] = 1
    return schedule


def _weights(rule: Any, step: float | None) -> dict[str, Any]:
    """Return the option ``client_weights`` of a method, if the file has one: a name, a table, or a list."""
    made: Any = rule
    if isinstance(rule, str | list):
        is_import = isinstance(rule, str) and rule not in weights.RULES
        made = imported("client_weights", cast(str, rule))() if is_import else _center(cast(Any, rule))
    elif rule is not None:
        made = _part("client_weights", "client_weights", rule)
    if step is not None:
        if not isinstance(made, weights.ClientWeights) or not made.climbs:
            raise ConfigError("weights_step needs client_weights = 'agnostic' or 'snapshot', which learn the weights")
        made = made.changed(step_size=step)
    return {} if made is None else {"client_weights": made}


def _center(rule: str | list[float]) -> Any:
    """Return client weights by the name of their rule, or fixed weights."""
    return weights.fixed(rule) if isinstance(rule, list) else weights.RULES[rule]()


def _bounds(value: list[float] | str) -> Bounds:
    """Return the bounds of a file: a box, 'data', or 'none', since TOML has no None."""
    return None if value == "none" else check_bounds(value)


def make_attack(attack: config.Attack) -> Attack | None:
    """Build the attack of an experiment, or return None if it has none."""
    if attack.kind == "none":
        return None
    kind = ATTACKS[attack.kind]
    if attack.space is not None and "space" not in kind.settings.names:
        raise ConfigError(
            f"attack.space = {attack.space!r} needs attack.kind = {_either(config.ATTACK_OPTIONS['space'])}"
        )
    values = {name: getattr(attack, name) for name in kind.settings.names}
    return kind(**{name: _bounds(value) if name == "bounds" else value for name, value in values.items()})


def _either(names: Iterable[str]) -> str:
    """Return names in quotes, as alternatives.

    >>> _either(["pgd", "fgsm", "wasserstein"])
    "'pgd', 'fgsm' or 'wasserstein'"
    """
    *head, last = (repr(name) for name in names)
    return f"{', '.join(head)} or {last}" if head else last
