"""Run the work of clients whose examples are in this process, as lanes of one batch."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property, partial
from hashlib import sha256

import torch
from torch import Tensor

from wafl.attacks import Attack
from wafl.base.describe import describe
from wafl.base.errors import SequentialWarning, warn_user
from wafl.base.options import Count
from wafl.data.federation import Federation
from wafl.data.mistakes import what_is
from wafl.data.scales import LARGE, uneven_columns
from wafl.evaluation.evaluate import evaluate
from wafl.evaluation.score import Score
from wafl.objectives import Objective, ObjectiveState
from wafl.objectives.ball.client_cost_matrix import check_size, class_means, cost_matrix_of_means
from wafl.objectives.ball.cost_matrix import CostMatrix
from wafl.parts.messages import Query
from wafl.results.progress import ClientState, LaneKey, Progress
from wafl.results.run import Run
from wafl.tasks.fitness import UNFIT, check_fitness
from wafl.tasks.gpu.precision import computing
from wafl.tasks.problem import Problem
from wafl.tasks.task import Task
from wafl.train.class_means import class_means_at, output_shape, starting
from wafl.train.client_task import ClientTask
from wafl.train.clients import Clients, Engine, Judge, Roster, root_mean_square, squares_around_mean, trust_in
from wafl.train.lanes.features import with_fixed_features
from wafl.train.lanes.lanes import Lanes
from wafl.train.spec import Spec
from wafl.train.trust.admission import Admitted, Arrivals, Source, Tolerance, answer_tolerantly, split
from wafl.train.trust.caps import Caps
from wafl.train.trust.faults import Faults, spoil, without
from wafl.train.trust.trust import Trust


@dataclass(frozen=True)
class Embedded:
    """Clients with examples in this process, and the device of their work.

    ``unseen`` clients take no part in training.
    """

    federation: Federation
    device: torch.device
    chunk_size: int | None = None
    faults: Faults | None = None
    tolerance: Tolerance | None = None
    unseen: Federation | None = None
    caps: Caps | None = None
    workers: int | None = None
    roster: Roster = field(init=False)
    absent = ""  # all clients are here
    sees_updates = True

    def __post_init__(self) -> None:
        for name, kind in (("faults", Faults), ("tolerance", Tolerance)):
            if (value := getattr(self, name)) is not None and not isinstance(value, kind):
                raise TypeError(f"{name} is {what_is(value)}: pass wafl.{kind.__name__}(...)")
        clients = self.federation
        if self.workers is not None:
            Count().check("workers", self.workers)
        roster = Roster(
            clients.names,
            tuple(clients.train.num_examples.tolist()),
            clients.input_shape,
            clients.num_outputs,
            clients.num_classes,
            clients.unit,
            clients.bounds,
            clients.recipe,
            clients.intake,
        )
        object.__setattr__(self, "roster", roster)

    def uneven_columns(self) -> str:
        """Name the columns of the examples that must be scaled; empty if there are none."""
        clients = self.federation
        bounded = clients.bounds is not None
        return "" if bounded else uneven_columns(clients.train, clients.columns, large=LARGE)

    def check(self, task: Task, start: Tensor, objectives: Collection[Objective]) -> None:
        """Raise an error if training is impossible.

        Each objective moves one example, so that errors come before any work.
        """
        clients, problem = self.federation, Problem(task, start[None])
        x, y = first_example(clients, start)
        check_fitness(problem, x, y, clients.num_classes)
        check_integers(task, start, clients)
        boxes = {objective.box for objective in objectives} - {clients.bounds}  # examples lie within their own
        low, high = clients.train.span() if boxes - {None} else (0.0, 0.0)
        for box in boxes:
            if box is not None and (low < box[0] or high > box[1]):
                raise ValueError(f"the examples lie in [{low:g}, {high:g}], outside bounds={box}: widen them")
        for objective in objectives:
            objective.check_model(problem)
            # One step is enough to show whether the objective fits the model.
            short = objective.changed(steps=1) if objective.steps > 1 and is_dataclass(objective) else objective
            short(problem, x, y, ObjectiveState())

    def cost_matrix_of_clients(self, task: Task, start: Tensor, layer: str | None) -> CostMatrix:
        """Return the cost matrix of the clients' differences, at their inputs or at a layer of the starting model."""
        if layer is None:
            return self._cost_matrix
        self.check(task, start, ())
        check_size(output_shape(layer, task, start, self.federation.input_shape))
        means = class_means_at(layer, task, start, self.federation.train)
        return cost_matrix_of_means(self._trust.of_classes(means), starting(layer))

    @cached_property
    def _cost_matrix(self) -> CostMatrix:
        """The cost matrix of the differences between clients at their inputs."""
        train = self.federation.train
        check_size(train.shape)
        owner = torch.repeat_interleave(torch.arange(train.num_clients), train.num_examples)
        return cost_matrix_of_means(self._trust.of_classes(class_means(train.x, train.y, owner)))

    def spread(self) -> float:
        """Return the root mean square distance of a client's training examples from their mean.

        The mean is over all examples.
        """
        train = self.federation.train
        sums = [squares_around_mean(train.of(client)[0]) for client in range(train.num_clients)]
        return root_mean_square(*self._trust.of_examples(sums, train.num_examples.tolist()))

    @property
    def _trust(self) -> Trust:
        return trust_in(self.roster, self.tolerance, self.caps)

    def apart(self, left_out: Sequence[int], index: int, spec: Spec) -> tuple[Clients, Judge]:
        """Return the clients without the held-out ones, which judge. No remaining client fails on purpose."""
        train, judges = self.federation.set_apart(left_out)
        judges = replace(judges, test=judges.train)

        def judge(run: Run) -> dict[int, float]:
            scores = evaluate(run, judges).per_client
            return dict(enumerate(score.loss if score.accuracy is None else score.accuracy for score in scores))

        return replace(self, federation=train, faults=None, tolerance=None, unseen=None), judge

    def fingerprint(self) -> Mapping[str, str]:
        """Return digests of the examples and the faults; a resumed run may have a different tolerance."""
        failing = json.dumps(describe(self.faults))
        return {**self._examples, "faults": sha256(failing.encode()).hexdigest()}

    @cached_property
    def _examples(self) -> dict[str, str]:
        """The digests of the examples, which are read once for all methods of a study."""
        return self.federation.fingerprint()

    def engine(self, task: Task, specs: Mapping[int, Spec], group: int, progress: Progress) -> Engine:
        """Return the engine that runs these clients as lanes, with their faults if there are any."""
        if task.traits.obstacle is not None:
            warn_user(
                f"{type(task.module).__name__} cannot be batched over clients ({task.traits.obstacle}): they are "
                "computed one after another. Results are the same, but a round takes as long as all its clients "
                "together, and a sweep as long as all its runs",
                SequentialWarning,
            )
        first = next(iter(specs.values()))
        examples = self.federation.train.to(self.device)
        # A size that a server would not know must not change any digit here either.
        largest = 0 if first.needs_sizes else None
        objective, local = first.method.objective, first.method.local
        ends = first.method.client_weights.judges_ends
        client = ClientTask(task, objective, first.schedule.local_work, examples, largest, local, ends)
        chunk_size = progress.chunk_sizes.get(group, self.chunk_size)
        captures = self.device.type == "cuda"
        workers = None if captures else self.workers or torch.get_num_threads()
        lanes = Lanes(with_fixed_features(client), chunk_size, progress.memory, captures=captures, workers=workers)

        def run(queries: Sequence[Query], runs: Sequence[int]) -> list[Admitted]:
            with computing(client.work.precision, self.device, deterministic=client.work.deterministic):
                replies = lanes.run(queries, runs)
            if lanes.chunk_size is not None:
                progress.chunk_sizes[group] = lanes.chunk_size
            return [Admitted(query, reply) for query, reply in zip(queries, replies, strict=True)]

        if self.faults is None and self.tolerance is None:
            return run
        source = _with_faults(run, progress.memory, self.faults or Faults())
        return partial(answer_tolerantly, source, self.tolerance or Tolerance(), None)

    @property
    def testable(self) -> bool:
        """Whether any client has test examples."""
        return len(self.federation.test.y) > 0

    def evaluate(self, run: Run, attack: Attack | None = None, attacked: float = 1.0, seed: int = 0) -> Score:
        """Return the score of a run on the clients' test examples."""
        return evaluate(run, self.federation, attack=attack, attacked=attacked, seed=seed)

    def evaluate_parts(self, run: Run) -> Score:
        """Return the score without an attack, with the scores of unseen clients, if there are any."""
        return evaluate(run, self.federation, unseen=self.unseen)


def _with_faults(run: Engine, memory: dict[LaneKey, ClientState], faults: Faults) -> Source:
    """Return a source of replies whose clients drop out, are late, or send unusable replies, as the faults decide."""
    before: dict[LaneKey, ClientState] = {}

    def collect(queries: Sequence[Query], runs: Sequence[int], attempt: int) -> list[Arrivals]:
        nonlocal before
        if attempt > 0:  # clients forget the last attempt
            for keeper in [keeper for keeper in memory if keeper[0] in runs]:
                del memory[keeper]
            memory.update({keeper: kept for keeper, kept in before.items() if keeper[0] in runs})
        before = dict(memory)
        fates = [faults.befall(query, attempt) for query in queries]
        gone = [[client for client, fate in fate.items() if fate == "dropout"] for fate in fates]
        present = [without(query, clients) for query, clients in zip(queries, gone, strict=True)]
        asked = [index for index, query in enumerate(present) if query.clients]
        answers = run([present[index] for index in asked], [runs[index] for index in asked])
        arrived = {index: split(answer.replies) for index, answer in zip(asked, answers, strict=True)}
        return [spoil(arrived.get(index, []), fate) for index, fate in enumerate(fates)]

    return collect


def first_example(clients: Federation, params: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first client's first example and label, as one lane with the parameters' type and device."""
    x, y = (values[:1][None] for values in clients.train.of(0))
    return x.to(params), y.to(params) if y.is_floating_point() else y.to(params.device)


def check_integers(task: Task, params: Tensor, clients: Federation) -> None:
    """Raise ValueError if a model rejects the examples' integers, such as words outside its vocabulary."""
    if not task.traits.integers:
        return
    for examples in (clients.train, clients.test):
        for raw in examples.raw.split(4096):
            x = examples.prepare(raw, examples.dtype)
            if not torch.equal(x, x.round()):
                raise ValueError(f"{type(task.module).__name__} takes integers, and the examples contain other numbers")
            flat = x.flatten(1)
            for row in {int(flat.amin(1).argmin()), int(flat.amax(1).argmax())} if len(x) else ():
                try:
                    task.call(params, x[row : row + 1].to(params))
                except UNFIT as error:
                    low, high = int(x[row].min()), int(x[row].max())
                    raise ValueError(
                        f"{type(task.module).__name__} does not take an example with integers from {low} to {high}: "
                        f"{error}"
                    ) from error


def find_device(name: str) -> torch.device:
    """Return the device with this name; raise ValueError if torch cannot use it."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device={name!r} is not a device: use 'cpu' or 'cuda'") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={name!r} needs CUDA, which torch does not find here: use device='cpu'")
    return device
