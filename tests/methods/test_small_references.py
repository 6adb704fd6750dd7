"""Every named method, and every part that an experiment file can name, trains like a plain reference, in float64.

Five clients with one to three examples, two rounds: small enough for ``make check``, where a method that has become
another one must not pass. The cases are looked up by the names in the lists of methods and parts, so a new name without
a reference fails here. Larger cases are in tests/train/test_against_reference.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import Tensor, nn

import wafl
from tests.oracles import descended, reference, reweighing, robust
from tests.oracles.reference import AffineMaps, Ball, Learned, Params, Reweighed, Transport, Unmoved
from tests.oracles.reference import ServerOptimizer as Optimizer
from wafl import local, objectives, servers, weights
from wafl.local import LOCAL_STEPS
from wafl.objectives import Objective
from wafl.servers import AGGREGATES, OPTIMIZERS

SIZES, CLASSES, FEATURES = (1, 3, 2, 1, 2), 3, 2
RATE, STEPS, SEED = 0.5, 2, 11
EQUAL = [1] * len(SIZES)
TO_THE_END: dict[str, Any] = {"steps": 400, "tolerance": 1e-11}
"""For an l2 ball, linear models take other steps than the reference, to the same maximizer."""


def by_size() -> Sequence[int]:
    """The weights of FedAvg, which a case replaces by its clients' sizes."""
    return SIZES


@dataclass(frozen=True)
class Case:
    """A method as the package has it and as the reference does; a field that is not given is FedAvg's.

    What remembers something between rounds is made anew for each training. ``sizes`` has the clients' examples.
    """

    method: wafl.Method
    objective: Callable[[], reference.Objective] = Unmoved
    weights: Callable[[], Any] = by_size
    server: Callable[[], Optimizer] | None = None
    local: Callable[[], reference.LocalStep] | None = None
    aggregate: reference.Aggregate | None = None
    schedule: Mapping[str, Any] = field(default_factory=dict)
    sizes: tuple[int, ...] = SIZES

    @property
    def work(self) -> dict[str, Any]:
        """How much clients train in a round."""
        steps = {} if "local_epochs" in self.schedule else {"local_steps": STEPS}
        options = {name: value for name, value in self.schedule.items() if name not in ("rounds", "cohort")}
        return {**steps, "batch_size": None, **options}


def rows_of(combine: Callable[[list[float], list[list[float]]], list[float]]) -> reference.Aggregate:
    """An aggregate of models from one of rows of numbers; every client takes part, and counts by its examples."""

    def aggregate(start: Params, models: list[Params], shares: list[float]) -> Params:
        result = numbers(combine(flat(start).tolist(), [flat(model).tolist() for model in models]))
        parts = result.split([value.numel() for value in start.values()])
        return {name: part.view_as(start[name]) for name, part in zip(start, parts, strict=True)}

    return aggregate


def numbers(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def flat(params: Params) -> Tensor:
    return torch.cat([value.flatten() for value in params.values()])


def masked(start: list[float], rows: list[list[float]]) -> list[float]:
    """Tenison et al. 2023: a parameter moves by the agreement of the clients' signs, in full from a threshold on."""
    result: list[float] = []
    for column, begin in enumerate(start):
        moves = [row[column] - begin for row in rows]
        agreed = abs(sum(size * math.copysign(1, move) for size, move in zip(SIZES, moves, strict=True))) / sum(SIZES)
        mean = sum(size * move for size, move in zip(SIZES, moves, strict=True)) / sum(SIZES)
        result.append(begin + (1.0 if agreed >= 0.7 else agreed) * mean)
    return result


def normalized(start: list[float], rows: list[list[float]]) -> list[float]:
    """Wang et al. 2020: ``x + tau sum p_i d_i``, ``d_i`` being the mean step; with batches of 1, ``tau_i = n_i``."""
    shares = [size / sum(SIZES) for size in SIZES]
    tau = sum(share * size for share, size in zip(shares, SIZES, strict=True))
    result: list[float] = []
    for column, begin in enumerate(start):
        steps = [(row[column] - begin) / size for row, size in zip(rows, SIZES, strict=True)]
        result.append(begin + tau * sum(share * step for share, step in zip(shares, steps, strict=True)))
    return result


def extrapolated(start: list[float], rows: list[list[float]]) -> list[float]:
    """Jhunjhunwala et al. 2023: the mean update times ``max(1, sum p_i |d_i|^2 / (2 |d|^2 + 2 epsilon))``."""
    mean = robust.mean(rows, SIZES)
    lengths = [robust.distance(row, start) ** 2 for row in rows]
    spread = sum(size * length for size, length in zip(SIZES, lengths, strict=True)) / sum(SIZES)
    rate = max(1.0, spread / (2 * robust.distance(mean, start) ** 2 + 2 * 0.01))
    return [begin + rate * (end - begin) for begin, end in zip(start, mean, strict=True)]


def best(start: list[float], rows: list[list[float]], kept: int) -> list[float]:
    chosen = robust.krum_order(rows, 1)[:kept]
    return robust.mean([rows[i] for i in chosen], [SIZES[i] for i in chosen])


def least_distances(start: list[float], rows: list[list[float]]) -> list[float]:
    """The point with the least sum of weighted distances, by a general minimizer."""
    points, sizes = np.array(rows), np.array(SIZES)

    def cost(z: np.ndarray) -> tuple[float, np.ndarray]:
        away = z - points
        distances = np.linalg.norm(away, axis=1)
        return float(sizes @ distances), (sizes / distances) @ away

    return optimize.minimize(cost, points.mean(0), jac=True, method="BFGS", options={"gtol": 1e-9}).x.tolist()


def least_losses(alpha: float, favored: float) -> reweighing.Weigh:
    """Zhu et al. 2023: the clients with the least loss count ``1 + alpha``, the others ``1 - alpha``."""

    def weigh(center: list[float], losses: list[float]) -> list[float]:
        ranks = sorted(range(len(losses)), key=lambda client: losses[client])[: round(favored * len(losses))]
        raw = [c * (1 + alpha if client in ranks else 1 - alpha) for client, c in enumerate(center)]
        return [value / sum(raw) for value in raw]

    return weigh


def of_variance(beta: float) -> reweighing.Weigh:
    """Krueger et al. 2021: the derivatives of the mean loss plus beta times its variance; below 0 they are 0."""

    def weigh(center: list[float], losses: list[float]) -> list[float]:
        result, shares = (numbers(each) for each in (losses, center))
        result.requires_grad_()
        mean = shares @ result
        slopes = torch.autograd.grad(mean + beta * (shares @ (result - mean) ** 2), result)[0].clamp_min(0)
        return (slopes / slopes.sum()).tolist()

    return weigh


def primal_dual(step: float, prox: float, extrapolation: float) -> reweighing.Weigh:
    """Yu et al. 2023: a proximal step up the extrapolated losses, from the weights and losses of the round before."""
    kept: dict[str, list[float]] = {}

    def weigh(center: list[float], losses: list[float]) -> list[float]:
        before, lam = kept.get("losses", losses), kept.get("lam", center)
        slopes = [now + extrapolation * (now - then) for now, then in zip(losses, before, strict=True)]
        even = 1 / len(lam)
        # The maximizer of <s, u> - prox/2 ||u - 1/m||^2 - 1/(2 step) ||u - lam||^2: complete the square.
        raw = [(w / step + s + prox * even) / (1 / step + prox) for w, s in zip(lam, slopes, strict=True)]
        kept["losses"], kept["lam"] = losses, reference.project(raw)
        return kept["lam"]

    return weigh


def reweighed(weigh: Callable[[], reweighing.Weigh], center: Any = SIZES, q: float | None = None) -> Callable[[], Any]:
    return lambda: Reweighed(weigh(), center, q)


BALL = Transport(gamma=1.5, **TO_THE_END)
MOST = descended.Most(0.4, 0.2, 2, SEED, STEPS)
IN_BALL: dict[str, Any] = {"epsilon": 0.4, "step_size": 0.2, "steps": 2, "bounds": None}
ONE_STEP = {"local_steps": 1}
EPOCH = {"local_epochs": 1, "batch_size": 1}
FAR = {"local_steps": 20}
"""Clients move far enough apart that FedExP's rate is above 1 in the second round; it is 1 in the first."""
DUAL = reweighed(lambda: primal_dual(0.3, 0.2, 0.7), EQUAL)
METHODS = {
    "FedAvg": Case(wafl.FedAvg()),
    "WAFL": Case(wafl.WAFL(gamma=1.5, **TO_THE_END), lambda: BALL),
    "SinkhornDRO": Case(
        wafl.SinkhornDRO(gamma=1.5, noise=0.5, samples=2, **TO_THE_END),
        lambda: descended.Spread(BALL, 0.5, 2, SEED, STEPS),
    ),
    "ResilientWAFL": Case(
        wafl.ResilientWAFL(gamma=1.5, temperature=0.4, **TO_THE_END), lambda: descended.BestExplained(BALL, 0.4)
    ),
    "DRFL": Case(
        wafl.DRFL(radius=0.3, coupling=0.5), lambda: descended.steep(0.3), local=lambda: reference.Admm(0.5)
    ),
    "FedPGM": Case(wafl.FedPGM(**IN_BALL), lambda: Ball(0.4, 0.2, 2)),
    "FedFGSM": Case(wafl.FedFGSM(epsilon=0.4), lambda: Ball(0.4, 0.4, 1)),
    "FedRobust": Case(wafl.FedRobust(penalty=0.5, step_size=0.2), lambda: AffineMaps(0.5, 0.2)),
    "Moved": Case(wafl.Moved(noise=2.0), lambda: descended.Noisy(2.0, SEED, STEPS)),
    "Mixup": Case(wafl.Mixup(alpha=0.7), lambda: descended.mixed(0.7, SEED, STEPS)),
    "TRADES": Case(wafl.TRADES(**IN_BALL, beta=2.0), lambda: descended.trades(2.0, MOST)),
    "CalFAT": Case(wafl.CalFAT(**IN_BALL), lambda: descended.calibrated(MOST, CLASSES)),
    "IRM": Case(wafl.IRM(penalty=2.0), lambda: descended.invariant(2.0)),
    "FedSR": Case(
        wafl.FedSR(l2=0.05, cmi=0.2, noise=0.3),
        lambda: descended.NoisyOutputs(0.05, 0.2, 0.3, RATE, SEED, STEPS, CLASSES),
    ),
    "AFL": Case(wafl.AFL(0.3), weights=lambda: Learned("AFL", 0.3), schedule=ONE_STEP),
    "DRFA": Case(wafl.DRFA(0.1), weights=lambda: Learned("DRFA", 0.1)),
    "ScaffPD": Case(wafl.ScaffPD(0.3, 0.2, 0.7), weights=DUAL, local=reference.GradientControl),
    "GroupDRO": Case(wafl.GroupDRO(0.5), weights=lambda: Learned("GroupDRO", 0.5)),
    "FedDGGA": Case(wafl.FedDGGA(0.9), weights=lambda: Learned("FedDGGA", 0.9)),
    "CVaR": Case(wafl.CVaR(0.5), weights=reweighed(lambda: reweighing.superquantile(0.5))),
    "FGDRO": Case(wafl.FGDRO(temperature=0.5), weights=reweighed(lambda: reweighing.tilted(2.0))),
    "QFFL": Case(wafl.QFFL(q=2.0), weights=reweighed(lambda: reweighing.powers(2.0), q=2.0)),
    "TERM": Case(wafl.TERM(t=-1.5), weights=reweighed(lambda: reweighing.tilted(-1.5))),
    "SFAT": Case(
        wafl.SFAT(alpha=0.5, favored=0.4, **IN_BALL), lambda: Ball(0.4, 0.2, 2),
        weights=reweighed(lambda: least_losses(0.5, 0.4)),
    ),
    "REx": Case(wafl.REx(beta=0.8), weights=reweighed(lambda: of_variance(0.8))),
    "FedProx": Case(wafl.FedProx(mu=0.5), local=lambda: reference.Prox(0.5)),
    "SCAFFOLD": Case(wafl.SCAFFOLD(), local=reference.Scaffold),
    "FedSAM": Case(wafl.FedSAM(rho=0.8), local=lambda: reference.Sharpness(0.0, 0.8)),
    "FedGMA": Case(wafl.FedGMA(0.7), aggregate=rows_of(masked)),
    "FedAvgM": Case(wafl.FedAvgM(rate=0.7, beta=0.8), server=lambda: Optimizer("momentum", 0.7, 0.8)),
    "FedAdam": Case(wafl.FedAdam(rate=0.2, tau=0.1), server=lambda: Optimizer("adam", 0.2, tau=0.1)),
    "FedYogi": Case(wafl.FedYogi(rate=0.2, tau=0.1), server=lambda: Optimizer("yogi", 0.2, tau=0.1)),
    "FedNova": Case(wafl.FedNova(), aggregate=rows_of(normalized), schedule=EPOCH),
    "FedDyn": Case(wafl.FedDyn(alpha=0.5), local=lambda: reference.Dynamic(0.5), schedule={"rounds": 3, "cohort": 4}),
    "FedExP": Case(wafl.FedExP(epsilon=0.01), aggregate=rows_of(extrapolated), schedule=FAR),
}  # fmt: skip


def with_rule(rule: weights.ClientWeights, result: Callable[[], Any], **schedule: Any) -> Case:
    return Case(wafl.FedAvg(client_weights=rule), weights=result, schedule=schedule)


RULES = {
    "by_examples": with_rule(weights.by_examples(), lambda: SIZES),
    "uniform": with_rule(weights.uniform(), lambda: EQUAL),
    "agnostic": with_rule(weights.agnostic(0.3), lambda: Learned("AFL", 0.3), **ONE_STEP),
    "snapshot": with_rule(weights.snapshot(0.1), lambda: Learned("DRFA", 0.1)),
    "cvar": with_rule(weights.cvar(0.5), reweighed(lambda: reweighing.superquantile(0.5))),
    "kl": with_rule(weights.kl(radius=0.1), reweighed(lambda: reweighing.kl_ball(0.1))),
    "chi2": with_rule(weights.chi2(0.02), reweighed(lambda: within_chi2(0.02))),
    "qffl": with_rule(weights.qffl(0.5), reweighed(lambda: reweighing.powers(0.5), q=0.5)),
    "term": with_rule(weights.term(2.0), reweighed(lambda: reweighing.tilted(2.0))),
    "primal_dual": with_rule(weights.primal_dual(0.3, 0.2, 0.7), DUAL),
    "slack": with_rule(weights.slack(0.5, 0.4), reweighed(lambda: least_losses(0.5, 0.4))),
    "group_dro": with_rule(weights.group_dro(0.5), lambda: Learned("GroupDRO", 0.5)),
    "gap": with_rule(weights.gap(0.7), lambda: Learned("FedDGGA", 0.7)),
    "rex": with_rule(weights.rex(0.8), reweighed(lambda: of_variance(0.8))),
}


def within_chi2(radius: float) -> reweighing.Weigh:
    """Namkoong and Duchi 2016, where no weight is 0: ``center (1 + sqrt(2 radius) (loss - mean) / deviation)``."""

    def weigh(center: list[float], losses: list[float]) -> list[float]:
        mean = sum(c * loss for c, loss in zip(center, losses, strict=True))
        deviation = math.sqrt(sum(c * (loss - mean) ** 2 for c, loss in zip(center, losses, strict=True)))
        lean = math.sqrt(2 * radius) / deviation
        result = [c * (1 + lean * (loss - mean)) for c, loss in zip(center, losses, strict=True)]
        assert min(result) > 0
        return result

    return weigh


def with_server(kind: servers.Server | servers.Optimizer, **options: Any) -> Case:
    return Case(wafl.FedAvg(server=kind), **options)


SERVERS = {
    "sgd": with_server(servers.sgd(0.6), server=lambda: Optimizer("sgd", 0.6)),
    "momentum": with_server(servers.momentum(0.5, 0.6), server=lambda: Optimizer("momentum", 0.5, 0.6)),
    "adam": with_server(
        servers.adam(0.2, 0.5, 0.7, 0.1), server=lambda: Optimizer("adam", 0.2, 0.5, 0.7, 0.1)
    ),
    "yogi": with_server(
        servers.yogi(0.2, 0.5, 0.7, 0.1), server=lambda: Optimizer("yogi", 0.2, 0.5, 0.7, 0.1)
    ),
    "clipped": with_server(
        servers.clipped(0.8), aggregate=rows_of(lambda start, rows: robust.clipped(start, rows, SIZES, 0.8))
    ),
    "median": with_server(servers.median(), aggregate=rows_of(lambda start, rows: robust.median(rows, SIZES))),
    "trimmed_mean": with_server(
        servers.trimmed_mean(2 / 9), aggregate=rows_of(lambda start, rows: robust.trimmed_mean(rows, SIZES, 2))
    ),
    "krum": with_server(servers.krum(1), aggregate=rows_of(lambda start, rows: best(start, rows, 1))),
    "multi_krum": with_server(servers.multi_krum(1), aggregate=rows_of(lambda start, rows: best(start, rows, 2))),
    "geometric_median": with_server(servers.geometric_median(), aggregate=rows_of(least_distances)),
    "bulyan": with_server(
        servers.bulyan(1), aggregate=rows_of(lambda start, rows: robust.bulyan(rows, 1)), sizes=(*SIZES, 3, 1, 2)
    ),
    "normalized": with_server(servers.normalized(), aggregate=rows_of(normalized), schedule=EPOCH),
    "extrapolated": with_server(servers.extrapolated(0.01), aggregate=rows_of(extrapolated), schedule=FAR),
    "masked": with_server(servers.masked(0.7), aggregate=rows_of(masked)),
}  # fmt: skip
LOCAL = {
    "sgd": Case(wafl.FedAvg(local=local.sgd())),
    "prox": Case(wafl.FedAvg(local=local.prox(2.0)), local=lambda: reference.Prox(2.0)),
    "control_variates": Case(wafl.FedAvg(local=local.control_variates()), local=reference.Scaffold),
    "consensus": Case(wafl.FedAvg(local=local.consensus(0.8)), local=lambda: reference.Admm(0.8)),
    "sam": Case(wafl.FedAvg(local=local.sam(0.6)), local=lambda: reference.Sharpness(0.0, 0.6)),
    "gradient_control": Case(
        wafl.FedAvg(client_weights=weights.term(2.0), local=local.gradient_control()),
        weights=reweighed(lambda: reweighing.tilted(2.0)), local=reference.GradientControl,
    ),
}  # fmt: skip
COARSE = {"geometric_median": 1e-6}
"""How far our result may be from the reference, if a general minimizer is the less exact one; otherwise 1e-8."""


@cache
def pairs(sizes: tuple[int, ...] = SIZES) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    centers = 2 * torch.randn(CLASSES, FEATURES, generator=generator, dtype=torch.float64)
    result: list[tuple[Tensor, Tensor]] = []
    for client, size in enumerate(sizes):
        y = (torch.arange(size) + client) % CLASSES
        result.append((centers[y] + torch.randn(size, FEATURES, generator=generator, dtype=torch.float64), y))
    return result


@cache
def start() -> Params:
    generator = torch.Generator().manual_seed(5)
    shapes = {"weight": (CLASSES, FEATURES), "bias": (CLASSES,)}
    return {name: 0.4 * torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def model() -> nn.Linear:
    return nn.Linear(FEATURES, CLASSES).double()


def by_reference(case: Case) -> reference.Trained:
    weights = case.sizes if case.weights is by_size else case.weights()
    return reference.train(
        reference.Minimized(model(), reference.cross_entropy), start(), pairs(case.sizes),
        reference.Work(**case.work), rounds=case.schedule.get("rounds", 2), cohort=case.schedule.get("cohort"),
        objective=case.objective(), weights=weights, learning_rate=lambda t: RATE, seed=SEED, aggregate=case.aggregate,
        server=None if case.server is None else case.server(), local=None if case.local is None else case.local(),
    )  # fmt: skip


def averaged(case: Case) -> Tensor:
    """The result of FedAvg on the schedule and the clients of a case."""
    return flat(by_reference(Case(wafl.FedAvg(), schedule=case.schedule, sizes=case.sizes)).params)


def assert_agrees(name: str, cases: Mapping[str, Case], table: str) -> None:
    assert name in cases, (
        f"{name} has no small reference: write its equation plainly, here or in tests/oracles/, and a case with "
        f"it in {table} of tests/methods/test_small_references.py"
    )
    case = cases[name]
    schedule = {"rounds": 2, "learning_rate": RATE, "seed": SEED, **case.work, **case.schedule}
    clients = wafl.Federation.from_arrays(pairs(case.sizes), test_fraction=0)
    run = wafl.fit(model(), clients, case.method, init=start(), **schedule)
    wanted, within = by_reference(case), COARSE.get(name, 1e-8)
    torch.testing.assert_close(flat(dict(run.params)), flat(wanted.params), rtol=0, atol=within)
    torch.testing.assert_close(run.client_weights, numbers(wanted.client_weights), rtol=0, atol=within)
    if replace(case.method, name="FedAvg") != wafl.FedAvg():
        apart = float((flat(wanted.params) - averaged(case)).abs().max())
        assert apart > 1e-2, "this case could not tell it from FedAvg"


@pytest.mark.parametrize("name", wafl.METHODS)
def test_a_named_method_trains_like_its_reference(name: str) -> None:
    assert_agrees(name, METHODS, "METHODS")


@pytest.mark.parametrize("name", weights.RULES)
def test_a_rule_for_the_client_weights_trains_like_its_reference(name: str) -> None:
    assert_agrees(name, RULES, "RULES")


@pytest.mark.parametrize("name", OPTIMIZERS | AGGREGATES)
def test_a_server_trains_like_its_reference(name: str) -> None:
    assert_agrees(name, SERVERS, "SERVERS")


@pytest.mark.parametrize("name", LOCAL_STEPS)
def test_a_local_step_trains_like_its_reference(name: str) -> None:
    assert_agrees(name, LOCAL, "LOCAL")


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 6, 8])
def test_a_case_that_cannot_tell_its_method_from_fedavg_fails_on_any_schedule(steps: int) -> None:
    """FedProx without its pull is FedAvg, and so is FedProx that takes one step."""
    pull = 2.0 if steps == 1 else 0.0
    case = Case(wafl.FedProx(pull), local=lambda: reference.Prox(pull), schedule={"local_steps": steps})
    with pytest.raises(AssertionError, match="could not tell it from FedAvg"):
        assert_agrees("it", {"it": case}, "METHODS")


def test_every_part_is_that_of_the_case_with_its_name() -> None:
    """A case under the wrong name, or an objective that is in no named method, would have no reference."""
    assert {name: type(case.method.client_weights) for name, case in RULES.items()} == weights.RULES
    assert {name: type(case.method.local) for name, case in LOCAL.items()} == LOCAL_STEPS
    result = {name: case.method.server for name, case in SERVERS.items()}
    assert {name: type(result[name].optimizer) for name in OPTIMIZERS} == OPTIMIZERS
    assert {name: type(result[name]) for name in AGGREGATES} == AGGREGATES
    kinds = {kind for kind in vars(objectives).values() if isinstance(kind, type) and issubclass(kind, Objective)}
    missing = kinds - {Objective} - {type(case.method.objective) for case in METHODS.values()}
    assert not missing, f"{missing}: write a case with it in METHODS of tests/methods/test_small_references.py"
