"""From what an experiment file says to what is trained: clients, model, methods, attack."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from wafl import models, weights
from wafl.algorithms.admission import Tolerance
from wafl.attacks import FGSM, PGD, Attack, WassersteinShift
from wafl.core.errors import ConfigError
from wafl.core.history import NUMBERS
from wafl.data import load_dataset
from wafl.data.federation import Federation
from wafl.engine.callbacks import EVALUATED
from wafl.engine.clients import Clients
from wafl.engine.embedded import Embedded, find_device
from wafl.engine.faults import Faults
from wafl.engine.fit import make_specs
from wafl.engine.spec import Spec
from wafl.engine.trainer import Trainer
from wafl.evaluation.evaluate import present_clients
from wafl.methods import METHODS, Method
from wafl.models import Described
from wafl.runs import config
from wafl.runs.trackers import check_trackers
from wafl.weights import ClientWeights, Learned

SCHEDULE = tuple(config.Schedule.model_fields)


@dataclass(frozen=True)
class Entry:
    """A method, what of it is swept, and the schedule it trains by, without the seed."""

    name: str
    method: Method
    grid: dict[str, list[Any]]
    schedule: dict[str, Any]

    def specs(self, seeds: Sequence[int]) -> list[Spec]:
        """One run for every combination of what is swept, the seed varying fastest."""
        return make_specs(self.method, {**self.grid, "seed": list(seeds)}, self.schedule)


FindClients = Callable[[Sequence[Entry]], Clients]
"""Gives the clients of these methods, where they are not in this process."""


@dataclass(frozen=True)
class Plan:
    """All that a study needs, made and checked before any work."""

    experiment: config.Experiment
    clients: Clients
    federation: Federation | None
    """The clients' examples; None where clients keep them."""
    model: nn.Module
    entries: list[Entry]
    attack: Attack | None

    def trainer(self) -> Trainer:
        return Trainer(self.model, self.clients, self.experiment.model.loss, None)

    @property
    def who(self) -> str:
        """The clients, in a line."""
        return str(self.federation or self.clients.roster)

    @property
    def testers(self) -> Clients:
        """Who tests the models: the clients themselves, where their examples are not at hand."""
        return self.clients if self.federation is None else Embedded(self.federation, torch.device("cpu"))


def make_plan(
    experiment: config.Experiment,
    folder: Path | None = None,
    find_clients: FindClients | None = None,
) -> Plan:
    """``folder`` is where ``module:function`` is looked for first: that of the experiment's file."""
    check_trackers(experiment.trackers)
    _check_stopping(experiment)
    if experiment.faults is not None and experiment.engine != "embedded":
        raise ConfigError(f"faults are of the embedded engine: leave them out of engine = {experiment.engine!r}")
    entries = [make_entry(method, experiment.schedule) for method in experiment.methods]
    named = [name for name in (experiment.data.source, experiment.model.kind) if name is not None and ":" in name]
    with_folder = _on_path(folder, [name.partition(":")[0].partition(".")[0] for name in named])
    try:
        federation = make_clients(experiment.data) if experiment.engine != "flower" else None
        if federation is not None:
            present_clients(federation)
        clients = find_clients(entries) if find_clients is not None else _embedded(experiment, federation)
        model = make_model(experiment.model, federation or clients.roster)
    finally:
        with_folder()
    plan = Plan(experiment, clients, federation, model, entries, make_attack(experiment.attack, clients.roster.bounds))
    if federation is None and plan.attack is not None and not plan.attack.pointwise:
        raise ConfigError(
            f"attack.kind = {experiment.attack.kind!r} moves all clients' examples at once, and no node has them all: "
            "use 'pgd', 'fgsm' or 'none'"
        )
    trainer = plan.trainer()
    for entry in entries:
        trainer.check(entry.specs(experiment.seeds))
    return plan


def _embedded(experiment: config.Experiment, federation: Federation | None) -> Embedded:
    if federation is None:
        raise ConfigError(
            "engine = 'flower' has its clients on nodes: `wafl flower app` makes an app that trains with them, and "
            "`flwr run APP -c 'folder=\"RUN\"'` goes on with a run"
        )
    faults, tolerance = experiment.faults, experiment.tolerance
    return Embedded(
        federation,
        find_device(experiment.device),
        None,
        None if faults is None else Faults(**faults.model_dump()),
        None if tolerance is None else Tolerance(**tolerance.model_dump()),
    )


def _check_stopping(experiment: config.Experiment) -> None:
    stopping = experiment.early_stopping
    known = {*NUMBERS, *(EVALUATED[:2] if experiment.evaluation.every else ())}
    if stopping is not None and stopping.metric not in known:
        hint = "; it wants evaluation.every" if stopping.metric in EVALUATED[:2] else ""
        raise ConfigError(f"early_stopping.metric = {stopping.metric!r} is none of {', '.join(sorted(known))}{hint}")


def make_clients(data: config.Data) -> Federation:
    if data.source is not None:
        clients = imported("data.source", data.source)()
        if not isinstance(clients, Federation):
            raise ConfigError(f"data.source = {data.source!r} returned {type(clients).__name__}, not a wafl.Federation")
        return clients
    options = data.model_dump(exclude={"dataset", "source", "data_dir"}, exclude_none=True)
    if data.sizes is not None:
        options["sizes"] = tuple(data.sizes)
    if not any(options.get(way) for way in ("labels_per_client", "dirichlet", "iid", "by_group")):
        raise ConfigError("data: give one of labels_per_client, dirichlet, iid = true or by_group = true")
    return load_dataset(data.dataset, data.data_dir).partition(**options)


def make_model(model: config.Model, clients: Described) -> nn.Module:
    if model.kind == "mlr":
        return models.mlr(clients)
    if model.kind == "cnn":
        first, second = model.channels or (32, 64)
        return models.cnn(clients, channels=(first, second), seed=model.seed)
    with torch.random.fork_rng(devices=[]):  # the same start whenever it is built, as a resume needs
        torch.manual_seed(model.seed)
        made = imported("model.kind", model.kind)(clients)
    if not isinstance(made, nn.Module):
        raise ConfigError(f"model.kind = {model.kind!r} returned {type(made).__name__}, not a torch.nn.Module")
    return made


def make_entry(entry: config.AnyMethod, common: config.Schedule) -> Entry:
    own = entry.model_dump(exclude_none=True, exclude={"name", "method", "client_weights"})
    schedule = {**_common(entry, common), **{name: own.pop(name) for name in SCHEDULE if name in own}}
    if "bounds" in own:
        own["bounds"] = tuple(own["bounds"])
    fixed = {name: value for name, value in own.items() if not isinstance(value, list)}
    swept = {name: value for name, value in own.items() if isinstance(value, list)}
    lists = {name: value for name, value in schedule.items() if isinstance(value, list)}
    if "rounds" not in schedule:
        raise ConfigError("schedule.rounds is missing: how many rounds to train")
    for name, values in {**swept, **lists}.items():
        if len(set(values)) != len(values):
            raise ConfigError(f"{entry.name or entry.method}: {name} = {values} has a value twice: give each once")
    rule = _weights(getattr(entry, "client_weights", None), own)
    if "weights_step" in own and entry.method == "WAFL" and not isinstance(rule, Learned):
        raise ConfigError("weights_step goes with client_weights = 'agnostic' or 'snapshot', which learn the weights")
    if rule is not None:
        fixed.pop("weights_step", None)
    options = {**fixed, **({} if rule is None else {"client_weights": rule})}
    method = METHODS[entry.method](
        **options, **{name: values[0] for name, values in swept.items() if name != "weights_step"}
    )
    single = {name: value for name, value in schedule.items() if name not in lists}
    return Entry(entry.name or entry.method.lower(), method, {**swept, **lists}, single)


def _common(entry: config.AnyMethod, common: config.Schedule) -> dict[str, Any]:
    """The common schedule, less what the method's own takes the place of; AFL asks all clients for one step."""
    schedule = common.model_dump(exclude_none=True)
    everyone = entry.method == "AFL" or getattr(entry, "client_weights", None) == "agnostic"
    if everyone:
        schedule.pop("cohort", None)
    if everyone or entry.local_steps is not None or entry.local_epochs is not None:
        schedule.pop("local_steps", None)
        schedule.pop("local_epochs", None)
    if everyone and entry.local_steps is None and entry.local_epochs is None:
        schedule["local_steps"] = 1
    return schedule


def _weights(rule: str | list[float] | None, options: dict[str, Any]) -> ClientWeights | None:
    if rule is None:
        return None
    if isinstance(rule, list):
        return weights.fixed(rule)
    if rule in ("agnostic", "snapshot"):
        step = options.get("weights_step", 0.1 if rule == "agnostic" else 0.01)
        return Learned(rule, step[0] if isinstance(step, list) else step)
    return weights.by_examples() if rule == "by_examples" else weights.uniform()


def make_attack(attack: config.Attack, bounds: tuple[float, float] | None) -> Attack | None:
    if attack.kind == "none":
        return None
    if attack.kind == "pgd":
        return PGD(attack.epsilon, attack.step_size, attack.steps, attack.norm, bounds=bounds)
    if attack.kind == "fgsm":
        return FGSM(attack.epsilon, attack.norm, bounds)
    if attack.kind == "wasserstein":
        return WassersteinShift(attack.radius, attack.norm, bounds=bounds)
    from wafl.attacks.autoattack import AutoAttack

    if bounds is None:
        raise ConfigError("attack.kind = 'autoattack' wants data with bounds: data.preprocess = 'unit' or 'symmetric'")
    return AutoAttack(epsilon=attack.epsilon, bounds=bounds)


def imported(key: str, name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{key} = {name!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ConfigError(f"{key} = {name!r} is no function")
    return found


def _on_path(folder: Path | None, names: Sequence[str]) -> Callable[[], None]:
    """Let imports look in the folder first; the function that is returned ends that."""
    if folder is None:
        return lambda: None
    place = str(folder.resolve())
    for name in names:  # another experiment may have a module of the same name
        loaded = getattr(sys.modules.get(name), "__file__", None)
        if loaded is not None and Path(loaded).parent != folder.resolve() and (folder / f"{name}.py").exists():
            del sys.modules[name]
    importlib.invalidate_caches()
    sys.path.insert(0, place)
    return lambda: sys.path.remove(place)
