"""Run the embedded engine on a node's clients."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, Self, get_args

from torch import Tensor, nn

from wafl.base.errors import ConfigError
from wafl.base.threads import one_thread
from wafl.config.experiment import Experiment
from wafl.config.plan import make_attack, make_entry, make_model
from wafl.data.examples import Examples
from wafl.evaluation.evaluate import examine, rows_of
from wafl.flower.node.agreed import check_steps, check_update, check_values
from wafl.flower.node.allowed import Answers, allowed_models
from wafl.flower.node.keeper import ledger_in
from wafl.flower.node.keepsakes import Keepsakes, state_folder
from wafl.flower.node.limits import Limits, Questions
from wafl.flower.node.private import Private
from wafl.flower.node.site import Site, open_site
from wafl.flower.wire.run_config import from_run_config
from wafl.flower.wire.values import NodeQuery, WireError, short
from wafl.parts.messages import GRADIENT, Replies
from wafl.results.progress import ClientState, LaneKey
from wafl.tasks.fitness import check_fitness
from wafl.tasks.gpu.precision import computing
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task
from wafl.tasks.task import Task
from wafl.train.checks.cost import round_steps
from wafl.train.chosen_radius import CANDIDATES
from wafl.train.client_task import ClientTask
from wafl.train.clients import Roster
from wafl.train.embedded import check_integers, find_device, first_example
from wafl.train.lanes.features import with_fixed_features
from wafl.train.lanes.lanes import Lanes
from wafl.train.replies import SNAPSHOT
from wafl.train.spec import Spec

DEVICE = re.compile(r"cpu|cuda(:\d+)?")
Split = Literal["test", "train", "all"]
"""The split of a client's examples for a test."""
SPLITS: tuple[Split, ...] = get_args(Split)


@lru_cache(maxsize=1)
def read_experiment(run_config: str) -> Experiment:
    """Return the experiment of a run config, cached for the simulated nodes of one process."""
    return from_run_config(json.loads(run_config))


@dataclass(frozen=True)
class Tested:
    """One client's test: the number of examples, their mean loss, and the fraction classified correctly."""

    num_examples: int
    loss: float
    accuracy: float | None


class Node:
    """The clients of one node, and their experiment."""

    def __init__(
        self,
        site: Site,
        experiment: Experiment,
        state: Path,
        limits: Limits,
        name: str = "",
        allowed_models: Collection[str] = (),
        private: Private | None = None,
    ) -> None:
        self.site = site.without_small(limits.min_examples) if site.own else site
        self.experiment, self.state, self.limits, self.name = experiment, state, limits, name
        self.private, self._ledger = private, ledger_in(state)
        self.answers, self._questions = Answers(state, allowed_models), Questions(state, limits.max_questions)

    @classmethod
    def of(cls, node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> Self:
        """Return the node of a configuration, with its data opened."""
        experiment = _on_own_device(read_experiment(json.dumps(dict(run_config))), node_config)
        site, state, limits = open_site(node_config, experiment.data), state_folder(node_config), Limits.of(node_config)
        private, name = Private.of(node_config), str(node_config.get("name", ""))
        if private is not None:
            site = private.site(site, node_config.get("data"), experiment.data)
        return cls(site, experiment, state, limits, name, allowed_models(node_config), private)

    def check_task(self, task: str) -> None:
        """Raise WireError if the node has its own data, and the app does not declare this task."""
        sections = {"next-client": self.experiment.questions, "personalize": self.experiment.personalize}
        declared = [*self.experiment.flower.tasks, *(name for name, section in sections.items() if section is not None)]
        if self.site.own and task not in declared:
            where = {"next-client": "[questions]", "personalize": "[personalize]"}.get(task, "tasks of [flower]")
            raise WireError(
                f"this belongs to the task {task!r}, and the app declares {', '.join(declared)}: write {where} into "
                "its experiment"
            )

    def model(self, num_outputs: int) -> nn.Module:
        """Return the experiment's model, for examples of this shape and the labels of all clients."""
        clients = self.site.federation
        if num_outputs != clients.num_outputs:
            raise WireError(
                f"this node has {clients.num_outputs} classes or targets, the model {num_outputs} outputs: write the "
                "number of classes into the app, as num_classes of [data]"
            )
        classes = None if clients.num_classes is None else num_outputs
        return make_model(self.experiment.model, Roster((), (), clients.input_shape, num_outputs, classes))

    def task(self, num_outputs: int) -> tuple[Task, Tensor]:
        """Return the model's task and its initial parameters."""
        experiment = self.experiment
        task = make_task(self.model(num_outputs), experiment.model.loss, find_device(experiment.device))
        start = task.initial()
        self.check_model(task, start, num_outputs)
        return task, start

    def check_model(self, task: Task, start: Tensor, num_outputs: int) -> None:
        """Raise an error if a model does not suit this node's examples."""
        clients = self.site.federation
        classes = None if clients.num_classes is None else num_outputs
        check_fitness(Problem(task, start[None]), *first_example(clients, start), classes)
        check_integers(task, start, clients)

    def check(self, query: NodeQuery, like: Tensor) -> Spec:
        """Return the spec that the runs share.

        Raise an error for clients of other nodes, and for deviations from the app.
        """
        rows = self.rows(query.names.values())
        specs, first = self._specs(query), query.queries[0]
        spec = self._shared(query, specs)
        trains = first.kind == "train"
        objective, local, asks = spec.method.objective, spec.method.local, spec.method.client_weights.asks_losses
        checks = not trains and self.experiment.evaluation.check_optimum and first.sends == (GRADIENT,)
        if not trains and not asks and not checks:
            raise WireError(f"kind='loss': {query.entry} does not ask clients for their losses")
        moved = () if objective is None else objective.scalars()
        needed = {
            "scalars": {*local.scalars(), *spec.schedule.scalars(0), *moved},
            "vectors": set(local.initial_vectors(like)) if trains else set[str](),
            "sends": {GRADIENT} if checks else set(local.sends if trains else local.reports),
        }
        for name, wanted in needed.items():
            if set(named := tuple(getattr(first, name))) != wanted:
                raise WireError(f"{name}={short(named)} must be {sorted(wanted)}")
        if first.iterates and not (trains and asks and list(first.iterates) == [SNAPSHOT]):
            raise WireError(f"iterates={short(tuple(first.iterates))}: {query.entry} does not ask clients for these")
        for each, wanted in zip(query.queries, specs, strict=True):
            check_values(each, wanted)
        if self.experiment.flower.partial_sums and not query.partial_sums:
            raise WireError("the app has flower.partial_sums = true: a node sends the mean of its clients' updates")
        if self.site.own and trains and self.private is None:
            check_update(first, spec.schedule, self.limits.min_examples)
            sizes = self.site.federation.train.num_examples[rows]
            check_steps(round_steps(spec, sizes.tolist()), self.limits.max_steps)
        return spec

    def answer(self, query: NodeQuery, spec: Spec, task: Task) -> list[Replies]:
        """Return the replies of this node's clients, one query per run."""
        first, method = query.queries[0], spec.method
        rows = dict(zip(query.names, self.asked(query.names.values(), len(query.queries)), strict=True))
        keepsakes = Keepsakes(self.state, query.training, query.entry)
        asked = [(run, client) for run, each in zip(query.runs, query.queries, strict=True) for client in each.clients]
        number, memory = first.round, dict[LaneKey, ClientState]()
        examples = self.site.federation.train.to(first.params.device)
        # Padded for the largest client anywhere, so that rounding is the same, unless that client is far too large.
        bearable = max(4096, 16 * int(examples.num_examples.max()))
        largest = query.largest if query.largest is None or query.largest <= bearable else 0
        work, ends = spec.schedule.local_work, method.client_weights.judges_ends
        client_task = ClientTask(task, method.objective, work, examples, largest, method.local, ends)
        if self.private is not None:
            with computing(work.precision, first.params.device, deterministic=work.deterministic):
                return self.private.answer(query, spec, client_task, rows, self.site, self._ledger)
        keeps = bool(client_task.initial_memory(first.params))
        for run, client in asked if keeps else []:
            # The server asks for losses after the round's training.
            kept = keepsakes.before(run, query.names[client], number + (first.kind == "loss"))
            if kept is not None:
                memory[run, client] = kept
        linear = task.linear(first.params[None]) is not None
        lanes = Lanes(with_fixed_features(client_task), None, memory, rows, query.pair)
        alone = one_thread() if linear else nullcontext()
        with computing(work.precision, first.params.device, deterministic=work.deterministic), alone:
            replies = lanes.run(query.queries, query.runs)
        if keeps and first.kind == "train":
            for run, client in memory:
                keepsakes.keep(run, query.names[client], number, memory[run, client], query.saved)
        return replies

    def surveyed(self, names: Sequence[str], split: Split, settings: int) -> Examples:
        """Return the clients' training or test examples; each client must have some."""
        clients = self.site.federation
        examples = (clients.train if split == "train" else clients.test).of_clients(self.asked(names, settings))
        for name, size in zip(names, examples.num_examples.tolist(), strict=True):
            if size == 0:
                raise WireError(f"{name} has no {split} examples to certify")
        return examples

    def test(
        self, names: Sequence[str], params: Tensor, task: Task, seed: int, split: Split, *, attacked: bool
    ) -> list[Tested]:
        """Test the model on a split of each client's examples; with ``attacked``, under the experiment's attack.

        Splits other than the test examples require clients that take no part in training or, for training examples, a
        method that chooses its radius.
        """
        asks_training = split == "train" and self.chooses
        if split != "test" and self.experiment.data.unseen is None and not asks_training:
            raise WireError(f"part={split!r}: the experiment has no data.unseen, so only test examples are tested")
        clients, problem = self.site.federation, Problem(task, params[None])
        if split != "test":
            clients = replace(clients, test=clients.train if split == "train" else clients.examples)
        held = self.asked(names)
        attack = make_attack(self.experiment.attack) if attacked else None
        attack = None if attack is None else attack.within(clients.bounds)
        measured = examine(problem, clients, attack, seed, rows_of(clients, held))
        sizes = clients.test.num_examples[held].tolist()
        losses, correct = (None if values is None else values[0].split(sizes) for values in measured)
        assert losses is not None
        return [
            Tested(size, float(losses[i].mean()), None if correct is None else float(correct[i].mean()))
            for i, size in enumerate(sizes)
        ]

    @property
    def chooses(self) -> bool:
        """Whether a method of the experiment chooses its radius on held-out clients."""
        return any(spec.undecided for specs in self.specs.values() for spec in specs)

    @cached_property
    def specs(self) -> dict[str, list[Spec]]:
        """The runs of each method of the experiment, by the method's name."""
        schedule, seeds = self.experiment.schedule, self.experiment.seeds
        return {method.label: make_entry(method, schedule).specs(seeds) for method in self.experiment.methods}

    def asked(self, names: Collection[str], questions: int = 1) -> list[int]:
        """Count questions about clients with this node's own data, and return the row of each in the federation."""
        rows = self.rows(names)
        if self.site.own:
            self._questions.count(names, questions)
        return rows

    def rows(self, names: Collection[str]) -> list[int]:
        """Return the row of each of these clients in the federation, without counting a question."""
        unknown = [name for name in names if name not in self.site.rows]
        if unknown:
            raise WireError(f"this node does not hold {short(unknown)}; it holds {short(list(self.site.rows))}")
        return [self.site.rows[name] for name in names]

    def _specs(self, query: NodeQuery) -> list[Spec]:
        """Return the runs of a query; candidates for radii come last."""
        if query.entry not in self.specs:
            raise WireError(f"method {short(query.entry)} is not in the experiment, which has: {', '.join(self.specs)}")
        specs = self.specs[query.entry]
        if any(spec.undecided for spec in specs):
            specs = [*specs, *(spec for spec in specs for _ in CANDIDATES)]
        if max(query.runs) >= len(specs):
            raise WireError(f"runs={short(query.runs)} must lie in [0, {len(specs) - 1}], the runs of {query.entry}")
        return [specs[run] for run in query.runs]

    def _shared(self, query: NodeQuery, specs: Sequence[Spec]) -> Spec:
        """Return the spec that these runs share, with the numbers of the first run."""
        # The radius itself is in the query, as for every run with a radius.
        chosen = [spec.with_radius(1.0) if spec.undecided else spec for spec in specs]
        if len({spec.shape() for spec in chosen}) != 1:
            raise WireError(f"runs={short(query.runs)} of {query.entry} cannot train in one batch")
        return chosen[0].within(self.site.federation.bounds)


def _on_own_device(experiment: Experiment, node_config: Mapping[str, Any]) -> Experiment:
    """Return the experiment on the device in the node's configuration, if it names one."""
    device = node_config.get("device")
    if device is None:
        return experiment
    if not isinstance(device, str) or not DEVICE.fullmatch(device):
        raise ConfigError(f"node config: device={device!r} must be 'cpu', 'cuda', or one of several, such as 'cuda:1'")
    return experiment.model_copy(update={"device": device})
