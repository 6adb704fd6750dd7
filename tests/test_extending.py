"""Parts that a user writes work like the built-in ones, in sweeps and with checkpoints."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import wafl
from tests.oracles import reference
from wafl.local import SAM, LocalState, LocalStep
from wafl.objectives import Move, Objective, ObjectiveState
from wafl.objectives.base import lane_scalar
from wafl.parts.schedule import Schedule
from wafl.servers import Server, Update
from wafl.tasks.inputs import Inputs, dense
from wafl.tasks.problem import Problem
from wafl.train.checkpoint.checkpoint import Checkpoint
from wafl.train.checks.cost import check_cost
from wafl.train.spec import Spec
from wafl.weights import ClientWeights, Cohort, LossQuery, Round

SCHEDULE: dict[str, Any] = {"rounds": 4, "cohort": 3, "local_steps": 2, "batch_size": 8, "learning_rate": 0.1}


@pytest.fixture(scope="module")
def clients() -> wafl.Federation:
    return wafl.load_dataset("digits").partition(num_clients=6, labels_per_client=3, seed=0)


@dataclass(frozen=True)
class Nudge(Objective):
    """A user's objective whose option happens to be called gamma."""

    gamma: float = 0.1
    sign: bool = False

    def scalars(self) -> dict[str, float]:
        return {"gamma": self.gamma}

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        x, state = dense(x), state or ObjectiveState()
        gamma = lane_scalar(state, "gamma", self.gamma, x).view(-1, *[1] * (x.ndim - 1))
        slope = problem.gradient(x, y)
        moved = x + gamma * (slope.sign() if self.sign else slope)
        cost = (moved - x).flatten(2).square().sum(-1)
        return Move(moved, y, problem.loss(moved, y), cost, torch.ones_like(cost, dtype=torch.bool), state=state)


@dataclass(frozen=True)
class FirstOrder(Nudge):
    """A user's objective whose cost is of order 1."""

    power: int = 1


class Still(Objective):
    """A user's objective with no more than it needs: it moves nothing, and is no dataclass."""

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        loss = problem.loss(x, y)
        return Move(x, y, loss, torch.zeros_like(loss), torch.ones_like(loss, dtype=torch.bool))


@dataclass(frozen=True)
class Everyone(ClientWeights):
    """A user's fixed rule: later clients count more."""

    def initial(self, num_examples: Sequence[int]) -> Tensor:
        weights = torch.arange(1.0, len(num_examples) + 1, dtype=torch.float64)
        return weights / weights.sum()

    def enlarged(self, weights: Tensor, num_examples: Sequence[int]) -> Tensor:
        return self.initial(num_examples)


@dataclass(frozen=True)
class Greedy(ClientWeights):
    """A user's learned rule from scratch: the mass goes to the client with the largest loss at the end of the round."""

    pull: float = 0.5

    def initial(self, num_examples: Sequence[int]) -> Tensor:
        return torch.full((len(num_examples),), 1.0 / len(num_examples), dtype=torch.float64)

    def enlarged(self, weights: Tensor, num_examples: Sequence[int]) -> Tensor:
        return self.initial(num_examples)

    def check(self, schedule: Schedule, num_clients: int) -> None:
        if schedule.cohort == 1:
            raise ValueError("cohort=1 has no largest loss: ask at least 2 clients")

    def draw(self, weights: Tensor, round: Round) -> Cohort:
        clients = tuple(range(round.cohort))
        return Cohort(clients, weights[list(clients)])

    def loss_query(self, round: Round) -> LossQuery:
        return LossQuery(tuple(range(round.num_clients)), round.local_steps)

    def learn(self, weights: Tensor, clients: Sequence[int], losses: Tensor, round: Round) -> Tensor:
        worst = torch.zeros_like(weights)
        worst[clients[int(losses.argmax())]] = 1.0
        return (1 - self.pull) * weights + self.pull * worst


@dataclass(frozen=True)
class Inertia(Server):
    """A user's server, with a vector that it remembers."""

    keep: float = 0.5

    def initial_memory(self, params: Tensor) -> dict[str, Tensor]:
        return {"last": torch.zeros_like(params)}

    def step(self, update: Update, memory: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        move = self.keep * memory["last"] + (1 - self.keep) * update.deltas.median(0).values
        return update.start + move, {"last": move}


@dataclass(frozen=True)
class SignSGD(LocalStep):
    """A user's local step."""

    def direction(self, gradient: Tensor, state: LocalState) -> tuple[Tensor, Mapping[str, Tensor]]:
        return gradient.sign(), state.carry


def own(**parts: Any) -> wafl.Method:
    return wafl.Method("own", **{"objective": None, "client_weights": wafl.weights.uniform(), **parts})


PARTS = {
    "objective": own(objective=Nudge(0.2)),
    "fixed rule": own(client_weights=Everyone()),
    "learned rule": own(client_weights=Greedy()),
    "server": own(server=Inertia()),
    "local step": own(local=SignSGD()),
    "second gradient": wafl.Method("own", Nudge(0.2), wafl.weights.by_examples(), local=SAM(0.3)),
    "all of them": wafl.Method("own", Nudge(0.2), Greedy(), Inertia(), SignSGD()),
}


def equal(one: wafl.Run, other: wafl.Run) -> bool:
    same = all(torch.equal(one.params[name], other.params[name]) for name in one.params)
    return same and torch.equal(one.client_weights, other.client_weights)


class InterruptError(Exception):
    pass


@pytest.mark.parametrize("name", PARTS)
def test_a_resumed_run_with_your_own_parts_ends_with_the_same_bits(
    clients: wafl.Federation, name: str, tmp_path: Path
) -> None:
    def interrupt(moment: Any) -> None:
        if moment.record.round == 2:
            raise InterruptError

    model = wafl.models.mlr(clients)
    whole = wafl.fit(model, clients, PARTS[name], **SCHEDULE)
    with pytest.raises(InterruptError):
        wafl.fit(model, clients, PARTS[name], checkpoint=Checkpoint(tmp_path), callbacks=[interrupt], **SCHEDULE)
    assert equal(wafl.fit(model, clients, PARTS[name], checkpoint=Checkpoint(tmp_path), **SCHEDULE), whole)


@pytest.mark.parametrize(
    ("name", "grid"),
    [
        ("objective", {"gamma": [0.1, 0.4]}),
        ("objective", {"sign": [False, True]}),
        ("all of them", {"gamma": [0.1, 0.4], "seed": [0, 1]}),
        ("server", {"server": [Inertia(0.1), Inertia(0.9), wafl.servers.adam(0.1)]}),
        ("second gradient", {"rho": [0.1, 0.5], "gamma": [0.1, 0.4]}),
        ("local step", {"local": [SignSGD(), wafl.local.prox(0.5), wafl.local.control_variates()]}),
        ("learned rule", {"client_weights": [Greedy(0.1), Everyone(), wafl.weights.snapshot(0.1)]}),
    ],
)
def test_each_run_of_a_sweep_over_your_own_parts_equals_the_same_run_alone(
    clients: wafl.Federation, name: str, grid: dict[str, list[Any]]
) -> None:
    model, method = wafl.models.mlr(clients), PARTS[name]
    runs = wafl.sweep(model, clients, method, grid, **SCHEDULE)
    for run, values in zip(runs, itertools.product(*grid.values()), strict=True):
        options = dict(zip(grid, values, strict=True))
        schedule = {**SCHEDULE, "seed": options.pop("seed", 0)}
        assert equal(run, wafl.fit(model, clients, method.with_options(**options), **schedule))


@pytest.mark.filterwarnings("ignore:no example moved:wafl.RadiusWarning")
def test_an_objective_needs_no_more_than_a_call(clients: wafl.Federation) -> None:
    model = wafl.models.mlr(clients)
    still, plain = (wafl.fit(model, clients, own(objective=objective), **SCHEDULE) for objective in (Still(), None))
    assert equal(still, plain)
    assert still.history.column("achieved_radius") == [0.0] * 4


def test_what_an_objective_says_of_itself_is_what_training_does(clients: wafl.Federation) -> None:
    model, method = wafl.models.mlr(clients), own(objective=FirstOrder(0.8))
    run = wafl.fit(model, clients, method, **SCHEDULE)
    assert run.history.column("gamma") == [0.8] * 4
    squares = wafl.fit(model, clients, method.with_options(power=2), **SCHEDULE).history.column("achieved_radius")
    assert run.history.column("achieved_radius") == pytest.approx([radius**2 for radius in squares])


def test_a_learned_rule_from_scratch_gets_the_losses_it_asked_for(clients: wafl.Federation) -> None:
    run = wafl.fit(wafl.models.mlr(clients), clients, PARTS["learned rule"], **SCHEDULE)
    assert [record.cohort for record in run.history] == [(0, 1, 2)] * 4
    assert float(run.client_weights.max()) >= 1 / 2
    assert float(run.client_weights.sum()) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="cohort=1 has no largest loss"):
        wafl.fit(wafl.models.mlr(clients), clients, PARTS["learned rule"], **{**SCHEDULE, "cohort": 1})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"client_weights": [1, 2]},
            r"client_weights=\[1, 2\] does not implement ClientWeights: use wafl.weights",
        ),
        ({"client_weights": Everyone}, "does not implement ClientWeights"),
        (
            {"server": "adam"},
            r"server='adam' does not implement Server: use a server from wafl.servers, such as adam\(0.01\)",
        ),
        ({"local": wafl.servers.sgd()}, "does not implement LocalStep: use a local step from wafl.local"),
        ({"objective": 3}, "objective=3 is not a wafl.objectives.Objective: use one of wafl.objectives, or derive"),
        ({"objective": Nudge}, "is not a wafl.objectives.Objective: .* None moves no example"),
        ({"objective": lambda problem, x, y, state: None}, "is not a wafl.objectives.Objective: .* derive your own"),
    ],
)
def test_what_is_not_a_part_is_refused_with_a_remedy(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        own(**parts)


def plain_sam(
    clients: wafl.Federation, start: Tensor, gamma: float, rho: float, decay: float, work: reference.Work, rate: float
) -> Tensor:
    """Two rounds of every client in turn, with softmax regression ``[classes, features + 1]``, by autograd."""

    def loss(params: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(x @ params[:, :-1].T + params[:, -1], y)

    def gradient(params: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Of the examples, each moved by gamma along its loss's gradient at these parameters."""
        x = x.clone().requires_grad_()
        (slopes,) = torch.autograd.grad(len(x) * loss(params, x, y), x)
        params = params.clone().requires_grad_()
        (result,) = torch.autograd.grad(loss(params, (x + gamma * slopes).detach(), y), params)
        return result + decay * params.detach()

    sizes = clients.train.num_examples.tolist()
    for number in range(2):
        ends: list[Tensor] = []
        for client, (x, y) in enumerate(zip(clients.train.x.split(sizes), clients.train.y.split(sizes), strict=True)):
            params = start
            for rows in reference.cut_in_batches(0, number, client, len(y), work):
                batch = x[rows].flatten(1).double(), y[rows]
                first = gradient(params, *batch)
                params = params - rate * gradient(params + rho * first / first.norm(), *batch)
            ends.append(params)
        start = sum((size / sum(sizes) * end for size, end in zip(sizes, ends, strict=True)), torch.zeros_like(start))
    return start


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_a_step_with_a_second_gradient_moves_the_examples_again_there(
    clients: wafl.Federation, gamma: float, decay: float
) -> None:
    model = wafl.models.mlr(clients).double()
    objective = Nudge(gamma) if gamma else None
    method = wafl.Method("own", objective, wafl.weights.by_examples(), local=SAM(0.5))
    schedule: dict[str, Any] = {"local_steps": 3, "batch_size": 16}
    run = wafl.fit(model, clients, method, rounds=2, learning_rate=0.2, weight_decay=decay, **schedule)
    start = torch.zeros(10, 65, dtype=torch.float64)
    result = plain_sam(clients, start, gamma, 0.5, decay, reference.Work(**schedule), 0.2)
    weight, bias = run.params.values()
    torch.testing.assert_close(torch.cat([weight, bias[:, None]], 1), result, atol=1e-10, rtol=0)
    once = wafl.fit(
        model, clients, replace(method, local=wafl.local.sgd()), rounds=2, learning_rate=0.2, **schedule
    ).params
    assert float((once[next(iter(once))] - weight).abs().max()) > 1e-3


def test_a_step_asks_for_no_more_gradients_than_it_declares(clients: wafl.Federation) -> None:
    @dataclass(frozen=True)
    class Undeclared(SAM):
        gradients = 1

    @dataclass(frozen=True)
    class Early(LocalStep):
        def begin(self, state: LocalState) -> Mapping[str, Tensor]:
            return {"first": state.gradient_at(state.params)}

    model = wafl.models.mlr(clients)
    with pytest.raises(ValueError, match=r"gradient 2 of a step, but declares gradients = 1: set gradients = 2"):
        wafl.fit(model, clients, own(local=Undeclared()), **SCHEDULE)
    with pytest.raises(ValueError, match=r"gradient_at\(\) can be called only in direction\(\)"):
        wafl.fit(model, clients, own(local=Early()), **SCHEDULE)


def test_a_second_gradient_counts_in_what_a_run_would_cost() -> None:
    """A step takes 10 microseconds at least: 5e9 of them 14 hours, and twice the number more than a day."""
    schedule = Schedule(rounds=10_000, local_steps=500_000)
    check_cost(Spec(own(), schedule), [10])
    with pytest.raises(ValueError, match=r"up to 1e\+10 steps, which take 1.16 days"):
        check_cost(Spec(own(local=SAM()), schedule), [10])


@dataclass(frozen=True)
class WithoutRows(LocalStep):
    """A mistake that is easy to make: the lengths of the rows have one dimension too many."""

    def direction(self, gradient: Tensor, state: LocalState) -> tuple[Tensor, Mapping[str, Tensor]]:
        return gradient / gradient.norm(dim=1)[:, None, None], state.carry


@dataclass(frozen=True)
class AllRows(Server):
    """A mistake that is easy to make: the clients' models are not reduced to one."""

    def step(self, update: Update, memory: Mapping[str, Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
        return update.params, memory


def test_a_part_that_returns_the_wrong_shape_is_named_with_both_shapes(clients: wafl.Federation) -> None:
    model = wafl.models.mlr(clients)
    with pytest.raises(
        ValueError, match=r"direction\(\) of local=WithoutRows\(\) .* the gradient has shape \[3, 650\]"
    ):
        wafl.fit(model, clients, wafl.FedAvg(local=WithoutRows()), **SCHEDULE)
    with pytest.raises(ValueError, match=r"step\(\) of server=AllRows\(\) .* \[3, 650\], but .* \[650\]"):
        wafl.fit(model, clients, wafl.FedAvg(server=AllRows()), **SCHEDULE)
