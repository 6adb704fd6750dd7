"""The engine agrees with the plain reference, method by method, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wafl
from tests.oracles import reference, reweighing
from tests.oracles.reference import AffineMaps, Ball, Learned, Reweighed, Transport, Unmoved
from tests.oracles.reference import ServerOptimizer as Optimizer

SIZES = (3, 8, 6, 5, 10, 2)
CLASSES = 4


@dataclass(frozen=True)
class Case:
    """A method as the package has it and as the reference does; ``schedule`` is what differs from the usual one."""

    method: wafl.Method
    objective: reference.Objective
    weights: Any = SIZES
    schedule: dict[str, Any] = field(default_factory=dict)
    server: Callable[[], reference.ServerOptimizer] | None = None
    local: Callable[[], reference.Prox | reference.Scaffold] | None = None


def classes(shape: tuple[int, ...], bounded: bool = False) -> list[tuple[Tensor, Tensor]]:
    """Clients of unequal sizes, two of them smaller than a batch; every class has its own center."""
    generator = torch.Generator().manual_seed(3)
    centers = torch.randn(CLASSES, *shape, generator=generator, dtype=torch.float64)
    pairs = []
    for client, size in enumerate(SIZES):
        y = (torch.arange(size) + client) % CLASSES
        noise = torch.randn(size, *shape, generator=generator, dtype=torch.float64)
        x = centers[y] + noise
        pairs.append((x.sigmoid() if bounded else x, y))
    return pairs


def randomized(model: nn.Module, scale: float) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        name: scale * torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for name, value in model.named_parameters()
    }


TO_THE_END: dict[str, Any] = {"steps": 400, "tolerance": 1e-11}
"""For an l2 ball, linear models take other steps than the reference, to the same maximizer."""


def settled(case: Case) -> Case:
    """The case of a linear model, in which both ascend to the end."""
    objective = case.objective
    if not isinstance(objective, Transport) or (objective.norm, objective.power) != (2, 2) or objective.tolerance == 0:
        return case
    return replace(case, method=case.method.with_options(**TO_THE_END), objective=replace(objective, **TO_THE_END))


def assert_agree(
    case: Case,
    pairs: list[tuple[Tensor, Tensor]],
    model: Callable[[wafl.Federation], nn.Module],
    init: float = 0.0,
    loss: Any = "cross_entropy",
    losses: reference.Losses = reference.cross_entropy,
) -> None:
    schedule: dict[str, Any] = {
        "rounds": 5, "cohort": 3, "local_epochs": 2, "batch_size": 4, "learning_rate": 0.2, "seed": 11, **case.schedule,
    }  # fmt: skip
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0)
    module = model(clients).double()
    start = randomized(module, init) if init else {name: p.detach().clone() for name, p in module.named_parameters()}
    run = wafl.fit(module, clients, case.method, init=start if init else None, loss=loss, **schedule)

    work = reference.Work(**{name: schedule.pop(name) for name in WORK if name in schedule})
    rate = schedule.pop("learning_rate")
    schedule["learning_rate"] = rate if callable(rate) else lambda t: rate
    objective = replace(case.objective, maps={}) if isinstance(case.objective, AffineMaps) else case.objective
    expected = reference.train(
        reference.Minimized(module, losses), start, pairs, work,
        objective=objective, weights=case.weights, **schedule,
        server=None if case.server is None else case.server(), local=None if case.local is None else case.local(),
    )  # fmt: skip

    assert [sorted(set(cohort)) for cohort in expected.cohorts] == [list(c) for c in run.history.column("cohort")]
    for name, value in expected.params.items():
        assert run.params[name].dtype == torch.float64
        torch.testing.assert_close(run.params[name], value, rtol=0, atol=1e-8)
        assert float((value - start[name]).abs().max()) > 1e-3
    expected_weights = torch.tensor(expected.client_weights, dtype=torch.float64)
    torch.testing.assert_close(run.client_weights, expected_weights, rtol=0, atol=1e-8)
    if isinstance(objective, Transport):
        assert run.settings["scalars"]["gamma"] == pytest.approx(expected.gamma, rel=1e-8)


WORK = ("local_steps", "local_epochs", "batch_size", "momentum", "weight_decay")
ONE_STEP = {"local_steps": 1, "local_epochs": None, "cohort": None}
STEPS = {"local_steps": 4, "local_epochs": None}
TRAINING = {
    "FedAvg": Case(wafl.FedAvg(), Unmoved()),
    "momentum": Case(wafl.FedAvg(), Unmoved(), schedule={"momentum": 0.9, "learning_rate": 0.05}),
    "weight decay": Case(wafl.FedAvg(), Unmoved(), schedule={"momentum": 0.5, "weight_decay": 0.1}),
    "server learning rate": Case(wafl.FedAvg(), Unmoved(), schedule={"server_learning_rate": 0.6}),
    "learning rate by round": Case(wafl.FedAvg(), Unmoved(), schedule={"learning_rate": lambda t: 0.3 / (1 + t)}),
    "local steps": Case(wafl.FedAvg(), Unmoved(), schedule=STEPS),
    "fixed": Case(
        wafl.FedAvg(client_weights=wafl.weights.fixed([3, 0, 1, 0.5, 2, 0])), Unmoved(), [3, 0, 1, 0.5, 2, 0]
    ),
    "AFL": Case(wafl.AFL(weights_step=0.3), Unmoved(), Learned("AFL", 0.3), ONE_STEP),
    "DRFA": Case(wafl.DRFA(weights_step=0.05), Unmoved(), Learned("DRFA", 0.05)),
    "DRFA, local steps": Case(wafl.DRFA(weights_step=0.05), Unmoved(), Learned("DRFA", 0.05), STEPS),
    "CVaR": Case(wafl.CVaR(alpha=0.4), Unmoved(), Reweighed(reweighing.superquantile(0.4), SIZES)),
    "FGDRO": Case(wafl.FGDRO(temperature=0.5), Unmoved(), Reweighed(reweighing.tilted(2.0), SIZES)),
    "TERM": Case(wafl.TERM(t=-1.5), Unmoved(), Reweighed(reweighing.tilted(-1.5), SIZES)),
    "QFFL": Case(wafl.QFFL(q=2.0), Unmoved(), Reweighed(reweighing.powers(2.0), SIZES, 2.0)),
    "WAFL, TERM's weights": Case(
        wafl.WAFL(gamma=1.0, client_weights=wafl.weights.term(2.0)), Transport(gamma=1.0),
        Reweighed(reweighing.tilted(2.0), SIZES),
    ),
}  # fmt: skip
ADVERSARIES = {
    "WAFL": Case(wafl.WAFL(gamma=1.0), Transport(gamma=1.0)),
    "WAFL, l1": Case(wafl.WAFL(gamma=0.2, norm=1), Transport(gamma=0.2, norm=1)),
    "WAFL, linf": Case(wafl.WAFL(gamma=5.0, norm=math.inf), Transport(gamma=5.0, norm=math.inf)),
    "WAFL, labels": Case(
        wafl.WAFL(gamma=1.0, label_cost=1.5), Transport(gamma=1.0, label_cost=1.5, num_classes=CLASSES)
    ),
    "WAFL, radius": Case(wafl.WAFL(radius=0.5), Transport(radius=0.5)),
    "WAFL, radius of l1": Case(wafl.WAFL(radius=0.5, norm=1), Transport(radius=0.5, norm=1)),
    "WAFL, radius of linf": Case(wafl.WAFL(radius=0.2, norm=math.inf), Transport(radius=0.2, norm=math.inf)),
    "WAFL, DRFA's weights": Case(
        wafl.WAFL(gamma=1.0, client_weights=wafl.weights.snapshot(0.05)), Transport(gamma=1.0), Learned("DRFA", 0.05)
    ),
    "WAFL, AFL's weights": Case(
        wafl.WAFL(gamma=1.0, client_weights=wafl.weights.agnostic(0.3)), Transport(gamma=1.0), Learned("AFL", 0.3),
        ONE_STEP,
    ),
    "FedPGM": Case(wafl.FedPGM(epsilon=0.3, steps=5), Ball(0.3, 0.15, 5)),
    "FedPGM, l2": Case(wafl.FedPGM(epsilon=0.5, step_size=0.2, steps=4, norm=2), Ball(0.5, 0.2, 4, 2)),
    "FedFGSM": Case(wafl.FedFGSM(epsilon=0.2), Ball(0.2, 0.2, 1)),
    "FedRobust": Case(wafl.FedRobust(penalty=0.5, step_size=0.05), AffineMaps(0.5, 0.05)),
}  # fmt: skip
SERVERS = {
    "FedAdam": Case(wafl.FedAdam(rate=0.1), Unmoved(), server=lambda: Optimizer("adam", 0.1)),
    "WAFL, FedAdam's server": Case(
        wafl.WAFL(radius=0.5, server=wafl.servers.adam(0.1)), Transport(radius=0.5),
        server=lambda: Optimizer("adam", 0.1),
    ),
}  # fmt: skip
LOCAL = {
    "FedProx": Case(wafl.FedProx(mu=0.5), Unmoved(), local=lambda: reference.Prox(0.5)),
    "SCAFFOLD": Case(wafl.SCAFFOLD(), Unmoved(), local=reference.Scaffold),
    "SCAFFOLD, all clients, local steps, decay": Case(
        wafl.SCAFFOLD(), Unmoved(), schedule={**STEPS, "cohort": None, "weight_decay": 0.1}, local=reference.Scaffold
    ),
    "WAFL, SCAFFOLD's steps": Case(
        wafl.WAFL(gamma=1.0, local=wafl.local.control_variates()), Transport(gamma=1.0), local=reference.Scaffold
    ),
    "clipped updates": Case(wafl.FedAvg(), Unmoved(), schedule={"clip_norm": 0.4}),
}  # fmt: skip
BOX = (0.0, 1.0)
BOUNDED = {
    "l2": Case(wafl.WAFL(gamma=1.0, bounds=BOX, **TO_THE_END), Transport(gamma=1.0, bounds=BOX, **TO_THE_END)),
    "l1": Case(wafl.WAFL(gamma=0.2, norm=1, bounds=BOX), Transport(gamma=0.2, norm=1, bounds=BOX)),
    "linf": Case(wafl.WAFL(gamma=0.5, norm=math.inf, bounds=BOX), Transport(gamma=0.5, norm=math.inf, bounds=BOX)),
    "l2, power 1": Case(wafl.WAFL(gamma=0.4, power=1, bounds=BOX), Transport(gamma=0.4, power=1, bounds=BOX)),
    "linf, power 1": Case(
        wafl.WAFL(gamma=0.8, norm=math.inf, power=1, bounds=BOX),
        Transport(gamma=0.8, norm=math.inf, power=1, bounds=BOX),
    ),
    "radius": Case(wafl.WAFL(radius=0.5, bounds=BOX, **TO_THE_END), Transport(radius=0.5, bounds=BOX, **TO_THE_END)),
    "radius of linf": Case(
        wafl.WAFL(radius=0.3, norm=math.inf, bounds=BOX), Transport(radius=0.3, norm=math.inf, bounds=BOX)
    ),
    "FedPGM": Case(wafl.FedPGM(epsilon=0.3, steps=5, bounds=BOX), Ball(0.3, 0.15, 5, bounds=BOX)),
    "FedPGM, l2": Case(wafl.FedPGM(epsilon=0.6, steps=5, norm=2, bounds=BOX), Ball(0.6, 0.3, 5, 2, BOX)),
}


EVERY = TRAINING | ADVERSARIES | SERVERS | LOCAL


@pytest.mark.parametrize("name", EVERY)
def test_every_method_trains_a_linear_model_like_the_reference(name: str):
    assert_agree(settled(EVERY[name]), classes((5,)), wafl.models.mlr, init=0.4)


def small_network(clients: wafl.Federation) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, CLASSES)
    )


@pytest.mark.parametrize(
    "name",
    [
        "FedAvg", "AFL", "DRFA", "WAFL", "WAFL, l1", "WAFL, linf", "WAFL, labels", "WAFL, radius",
        "WAFL, DRFA's weights", "FedPGM", "FedPGM, l2", "FedFGSM", "FedRobust", "FedProx", "SCAFFOLD", "FedAdam",
        "WAFL, SCAFFOLD's steps", "WAFL, FedAdam's server", "clipped updates",
    ],
)  # fmt: skip
def test_methods_train_a_network_like_the_reference(name: str):
    """The weights are large enough for the ascent to overshoot, so its damping is halved."""
    case = EVERY[name]
    usual = {"cohort": 2, "local_steps": 2, "local_epochs": None, "batch_size": 2, "learning_rate": 0.05}
    case = replace(case, schedule=usual | case.schedule)
    if isinstance(case.objective, Transport):
        case = replace(case, method=case.method.with_options(steps=8), objective=replace(case.objective, steps=8))
    assert_agree(case, classes((1, 6, 6)), small_network, init=0.6)


@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
@pytest.mark.parametrize("name", BOUNDED)
def test_objectives_within_bounds_train_like_the_reference(name: str):
    assert_agree(BOUNDED[name], classes((5,), bounded=True), wafl.models.mlr, init=1.0)


def test_below_the_concavity_limit_training_warns_and_is_like_the_reference():
    case = Case(wafl.WAFL(gamma=0.5), Transport(gamma=0.5), schedule={"learning_rate": 0.02})
    with pytest.warns(wafl.ConcavityWarning):
        assert_agree(settled(case), classes((5,)), wafl.models.mlr, init=1.0)


def test_without_a_tolerance_all_steps_are_taken_like_in_the_reference():
    case = Case(wafl.WAFL(gamma=0.6, steps=4, tolerance=0.0), Transport(gamma=0.6, steps=4, tolerance=0.0))
    assert_agree(case, classes((5,)), wafl.models.mlr, init=0.4)


def targets(width: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(4)
    truth = torch.randn(5, width, generator=generator, dtype=torch.float64)
    pairs = []
    for size in SIZES:
        x = torch.randn(size, 5, generator=generator, dtype=torch.float64)
        y = x @ truth + 0.3 * torch.randn(size, width, generator=generator, dtype=torch.float64)
        pairs.append((x, y[:, 0] if width == 1 else y))
    return pairs


REGRESSION = {
    "FedAvg": Case(wafl.FedAvg(), Unmoved()),
    "WAFL": Case(wafl.WAFL(gamma=20.0), Transport(gamma=20.0)),
    "WAFL, l1": Case(wafl.WAFL(gamma=20.0, norm=1), Transport(gamma=20.0, norm=1)),
    "WAFL, radius of linf": Case(wafl.WAFL(radius=0.2, norm=math.inf), Transport(radius=0.2, norm=math.inf)),
    "WAFL, targets": Case(wafl.WAFL(gamma=50.0, label_cost=0.1), Transport(gamma=50.0, label_cost=0.1)),
    "FedPGM": Case(wafl.FedPGM(epsilon=0.3, steps=5), Ball(0.3, 0.15, 5)),
    "DRFA": Case(wafl.DRFA(weights_step=0.01), Unmoved(), Learned("DRFA", 0.01)),
}


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("name", REGRESSION)
def test_methods_train_a_linear_regression_like_the_reference(name: str, width: int):
    case = settled(replace(REGRESSION[name], schedule={"learning_rate": 0.03}))
    assert_agree(
        case, targets(width), wafl.models.mlr, 0.5, "squared_error",
        reference.squared_error,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["FedAvg", "WAFL", "WAFL, l1", "FedPGM"])
def test_methods_train_with_your_own_loss_like_the_reference(name: str):
    def log_cosh(outputs: Tensor, y: Tensor) -> Tensor:
        gap = outputs[:, 0] - y
        return gap.abs() + torch.log1p(torch.exp(-2 * gap.abs()))

    case = {
        **REGRESSION,
        "WAFL": Case(wafl.WAFL(gamma=0.4), Transport(gamma=0.4)),
        "WAFL, l1": Case(wafl.WAFL(gamma=0.4, norm=1), Transport(gamma=0.4, norm=1)),
    }[name]
    assert_agree(case, targets(1), wafl.models.mlr, 0.5, log_cosh, log_cosh)
