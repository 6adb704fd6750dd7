"""The strategy and the training step for Flower apps, in one process, against plain loops and our own engine."""

from __future__ import annotations

import inspect
import logging
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import adaptiveclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedProx,
)
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor, nn

import wafl
from wafl.base.errors import TooFewRepliesError
from wafl.base.options import options_of
from wafl.base.random import Key
from wafl.data.examples import Examples
from wafl.flower.app.strategy import WAFL
from wafl.flower.app.training import train
from wafl.objectives import Wasserstein, wasserstein
from wafl.objectives.learned_gamma import FIRST_EXCESS
from wafl.parts.schedule import LocalWork
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task
from wafl.train.batches import draw_batches
from wafl.train.client import local_update
from wafl.train.client_task import ClientTask, LaneInput

Batch = tuple[Tensor, Tensor]
Client = Callable[[Message, Context], Message]


@pytest.fixture(autouse=True)
def flower_task(monkeypatch: pytest.MonkeyPatch):
    """Outside a Flower task, messages would have no sender and could not be made."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Grid:
    """Nodes in this process, one per client."""

    def __init__(self, *clients: Client) -> None:
        self.clients = clients

    def get_node_ids(self) -> Iterable[int]:
        return range(len(self.clients))

    def send_and_receive(self, messages: Iterable[Message], timeout: float) -> list[Message]:
        return [self.clients[m.metadata.dst_node_id](m, context(m.metadata.dst_node_id)) for m in messages]


def context(partition: int = 0, **run_config: Any) -> Context:
    return Context(1, 7, {"partition-id": partition}, RecordDict(), run_config)


def linear() -> nn.Module:
    return seeded(lambda: nn.Linear(3, 4))


def network() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)))


def regression() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)))


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return make().double()


def batches(*sizes: int, targets: bool = False, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.rand(size, 3, generator=generator, dtype=dtype) for size in sizes]
    if targets:
        return [(x, x.sum(1, keepdim=True).sin()) for x in inputs]
    return [(x, torch.randint(4, (len(x),), generator=generator)) for x in inputs]


def ask(strategy: FedAvg, model: nn.Module, nodes: int = 2, **config: Any) -> list[Message]:
    """A round's messages, as clients get them."""
    grid: Any = Grid(*[client_of([])] * nodes)
    return list(strategy.configure_train(1, ArrayRecord(model.state_dict()), ConfigRecord(config), grid))


def message_for(model: nn.Module, lr: float = 0.3, **options: Any) -> Message:
    return ask(WAFL(**options), model, lr=lr)[0]


def client_of(loader: Any, make: Callable[[], nn.Module] = linear, **options: Any) -> Client:
    return lambda message, ctx: train(make(), loader, message, ctx, **options)


def reply_with(message: Message, arrays: dict[str, np.ndarray], **metrics: Any) -> Message:
    content = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(value) for name, value in arrays.items()}),
            "metrics": MetricRecord({key.replace("_", "-"): value for key, value in metrics.items()}),
        }
    )
    reply = Message(content, reply_to=message)
    reply.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
    return reply


def metrics_of(message: Message) -> dict[str, Any]:
    return dict(message.content.metric_records["metrics"])


def state_of(message: Message) -> dict[str, Tensor]:
    return dict(message.content.array_records["arrays"].to_torch_state_dict())


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, y, reduction="none")


@pytest.mark.parametrize("make", [linear, network, regression])
@pytest.mark.parametrize(
    "options",
    [
        {"gamma": 3.0},
        {"gamma": 5.0, "norm": math.inf},
        {"gamma": 5.0, "label_cost": 0.3},
        {"gamma": 2.0, "power": 1, "bounds": (0.0, 1.0)},
        {"gamma": 0.05, "restarts": 1, "steps": 7, "tolerance": 1e-9, "bounds": (0.0, 1.0)},
    ],
)
def test_training_matches_the_engine(make: Callable[[], nn.Module], options: dict[str, Any]) -> None:
    """Two steps on full batches in the engine's order, because restarts are drawn by step and place in the batch."""
    (x, y) = batches(6, targets=make is regression)[0]
    loss: Any = "squared_error" if make is regression else "cross_entropy"
    model, task = make(), make_task(make(), loss)
    key = Key(*(torch.tensor([number]) for number in (0, 1, 2, 0)))
    work = LocalWork(None, 2, None)
    loader = [(x[order], y[order]) for order in draw_batches(work, key, torch.tensor([6]), 6).index[0]]
    ones = {"learning_rate": 0.3, "momentum": 0.0, "weight_decay": 0.0, "gamma": options["gamma"]}
    scalars = {name: torch.tensor([value], dtype=torch.float64) for name, value in ones.items()}
    lanes = LaneInput(task.initial()[None], torch.tensor([0]), scalars, key)
    client = ClientTask(task, wasserstein(**options), work, Examples(x, y, torch.tensor([0, 6])))
    wanted = local_update(client, lanes)

    message = message_for(model, **options)
    reply = train(model, loader, message, context(partition=2), loss=loss)
    for name, value in task.unflatten(wanted.vectors["params"][0]).items():
        torch.testing.assert_close(state_of(reply)[name], value, rtol=0, atol=1e-13)
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=1e-13)
    assert metrics_of(reply)["num-examples"] == 12
    first = metrics_of(train(model, loader[:1], message, context(partition=2), loss=loss))
    assert first["train_loss"] == pytest.approx(float(wanted.loss[0]), abs=1e-13)
    assert first["transport-cost"] == pytest.approx(float(wanted.cost[0]), abs=1e-13)


@pytest.mark.parametrize(
    "method",
    [{"gamma": 0.5}, {"radius": 0.4}, *({"radius": 0.1, "power": 1, "label_cost": cost} for cost in (0.2, math.inf))],
)
def test_a_whole_run_matches_the_engine(method: dict[str, Any]) -> None:
    """Three unequal clients and full batches: the model, its losses, and the gamma found for a radius that grows.

    In a ball of order 1, what gamma exceeds the slope by is learned by the strategy, which does not know the slope.
    """
    parts = [batches(size, seed=size, dtype=torch.float32)[0] for size in (4, 9, 6)]
    run = wafl.fit(
        linear().float(),
        wafl.Federation.from_arrays(parts, test_fraction=0, num_classes=4),
        wafl.WAFL(**method),
        rounds=6,
        local_epochs=1,
        batch_size=None,
        learning_rate=0.5,
        init=dict(linear().float().state_dict()),
    )
    strategy = WAFL(**method, fraction_evaluate=0.0)
    grid: Any = Grid(*(client_of([part], lambda: linear().float()) for part in parts))
    initial, config = ArrayRecord(linear().float().state_dict()), ConfigRecord({"lr": 0.5})
    result = strategy.start(grid, initial, 6, train_config=config)
    for name, value in result.arrays.to_torch_state_dict().items():
        torch.testing.assert_close(value, run.params[name], rtol=0, atol=1e-5)
    if "power" in method:
        learned = strategy.gamma not in (0.0, FIRST_EXCESS)
        assert strategy.gamma < 1e-6 if math.isinf(method["label_cost"]) else learned
        return
    rounds = [result.train_metrics_clientapp[number] for number in range(1, 7)]
    assert [record["gamma"] for record in rounds] == pytest.approx(run.history.column("gamma"), rel=1e-4)
    assert [record["train_loss"] for record in rounds] == pytest.approx(run.history.column("loss"), abs=1e-5)
    if "radius" in method:
        assert len({record["gamma"] for record in rounds}) == 6
        actual = strategy.gamma
        assert strategy.radius == 0.4
        strategy.start(grid, result.arrays, num_rounds=0, train_config=config)
        assert (strategy.gamma, strategy.radius) == (actual, 0.4), "more rounds go on with the whole ball"


def test_the_strategys_docstring_lists_every_option_of_its_own_and_of_fedavg() -> None:
    listed = re.findall(r"^    (\w+): ", inspect.getdoc(WAFL) or "", re.MULTILINE)
    assert listed == [
        *options_of(Wasserstein),
        "clip",
        "caps",
        *list(inspect.signature(FedAvg.__init__).parameters)[1:],
    ]


def test_a_gamma_that_is_found_keeps_targets_finite() -> None:
    """At ``gamma label_cost <= 1`` moving a target pays without end: there 1.05 is used, as in the engine."""
    result = WAFL(radius=9.0, label_cost=2.0)
    result.gamma = 0.01
    given = WAFL(gamma=1.05 / 2.0, label_cost=2.0)
    options: Any = {"lr": 0.1, "loss": "squared_error"}
    one, other = (
        train(regression(), batches(4, targets=True), ask(strategy, regression())[0], context(), **options)
        for strategy in (result, given)
    )
    torch.testing.assert_close(state_of(one), state_of(other), rtol=0, atol=0)
    too_low = ask(WAFL(gamma=0.01, label_cost=2.0), regression())[0]
    with pytest.raises(ValueError, match="must exceed 1"):
        train(regression(), batches(4, targets=True), too_low, context(), **options)


def test_strict_holds_a_gamma_that_is_found_above_the_concavity_limit() -> None:
    """Use the sent model's limit; if it is not known, strict is refused."""
    task = make_task(linear())
    limit = wasserstein(radius=9.0).concavity_limit(Problem(task, task.initial()[None]))
    assert limit is not None
    held, given = WAFL(radius=9.0, strict=True), WAFL(gamma=limit)
    held.gamma = 0.5 * limit
    one, other = (
        train(linear(), batches(4), ask(strategy, linear(), lr=0.1)[0], context()) for strategy in (held, given)
    )
    torch.testing.assert_close(state_of(one), state_of(other), rtol=0, atol=0)
    with pytest.raises(ValueError, match="strict=True needs a model whose curvature"):
        train(network(), batches(4), message_for(network(), radius=9.0, strict=True), context())


class Partial(nn.Module):
    """A frozen layer, a buffer of whole numbers, one of floats, and a layer that learns, in this order."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3).requires_grad_(False)
        self.register_buffer("rounds", torch.tensor(7))
        self.register_buffer("scale", torch.tensor([2.0, 1.0, 0.5]))
        self.last = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x) * self.scale)


def test_frozen_parameters_and_buffers_stay_as_they_were() -> None:
    def make() -> nn.Module:
        return seeded(Partial)

    strategy = WAFL(gamma=0.5)
    messages = ask(strategy, make(), lr=0.3)
    replies = [train(make(), batches(4, seed=seed), m, context()) for seed, m in enumerate(messages)]
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None
    before = make().state_dict()
    for state in (state_of(replies[0]), arrays.to_torch_state_dict()):
        assert list(state) == list(before)
        for name, value in state.items():
            assert value.dtype == before[name].dtype
            assert torch.equal(value, before[name]) != name.startswith("last")
    train(make(), batches(4), ask(strategy, loaded(make(), arrays), lr=0.3)[0], context())


def loaded(model: nn.Module, arrays: ArrayRecord) -> nn.Module:
    model.load_state_dict(arrays.to_torch_state_dict())
    return model


def test_the_replys_arrays_are_in_the_servers_order() -> None:
    model = linear()
    swapped = ArrayRecord({name: model.state_dict()[name] for name in ("bias", "weight")})
    grid: Any = Grid(*[client_of([])] * 2)
    message = next(iter(WAFL().configure_train(1, swapped, ConfigRecord({"lr": 0.1}), grid)))
    assert list(state_of(train(model, batches(3), message, context()))) == ["bias", "weight"]


def test_the_learning_rate_comes_from_the_argument_the_train_config_or_the_run_config() -> None:
    def step(config: dict[str, Any], run_config: dict[str, Any], **options: Any) -> Tensor:
        message = ask(WAFL(), linear(), **config)[0]
        reply = train(linear(), batches(4), message, context(**run_config), **options)
        return state_of(reply)["weight"] - linear().state_dict()["weight"]

    wanted = step({}, {}, lr=0.2)
    assert float(wanted.norm()) > 0
    for config, run_config, options in [
        ({"lr": 0.2}, {"lr": 9.0}, {}),
        ({"learning-rate": 0.2}, {}, {}),
        ({}, {"lr": 0.2}, {}),
        ({}, {"learning-rate": 0.2}, {}),
        ({"lr": 9.0}, {"lr": 9.0}, {"lr": 0.2}),
    ]:
        torch.testing.assert_close(step(config, run_config, **options), wanted, rtol=0, atol=0)
    twice = step({"lr": 0.2}, {"local-epochs": 2})
    torch.testing.assert_close(twice, step({"lr": 0.2}, {}, local_epochs=2), rtol=0, atol=0)
    assert float((twice - wanted).norm()) > 0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"lr": None}, "no learning rate: pass"),
        ({"lr": -0.1}, "lr=-0.1 must be positive"),
        ({"lr": "fast"}, "lr='fast' must be a number"),
        ({"local_epochs": 0}, "local_epochs=0 must be at least 1"),
        ({"loader": []}, "no batch in epoch 1 of 2"),
        ({"loader": iter(batches(3))}, "no batch in epoch 2 of 2"),
        ({"loader": [torch.ones(3)]}, "a batch is a Tensor"),
        ({"loader": [{"pixels": 1, "label": 2}]}, "keys pixels, label: it must have one of image, img, x"),
        ({"loader": [(torch.ones(3, 3), torch.zeros(2, dtype=torch.int64))]}, "one label per input"),
        ({"loader": [(torch.full((2, 3), math.nan), torch.tensor([0, 1]))]}, "NaN or infinity"),
        ({"loader": [(torch.ones(2, 5), torch.tensor([0, 1]))]}, r"does not take examples of shape \(5,\)"),
        ({"loader": [(torch.ones(2, 3), torch.tensor([0, 9]))]}, "4 outputs for 10 classes"),
        ({"model": network()}, "does not fit Sequential: names that only one of them has: 0.bias"),
        ({"model": nn.Linear(3, 4)}, "'weight' is float64 of shape .*, not float32"),
        ({"model": nn.Linear(4, 3).double()}, r"'weight' is float64 of shape \(4, 3\), not float64 of shape \(3, 4\)"),
    ],
)
def test_invalid_arguments_loaders_and_models_are_refused(change: dict[str, Any], complaint: str) -> None:
    usual = {"model": linear(), "loader": batches(3), "lr": 0.1, "local_epochs": 2}
    options = {**usual, **change}
    message = ask(WAFL(), linear())[0]
    with pytest.raises(ValueError, match=complaint):
        train(options.pop("model"), options.pop("loader"), message, context(), **options)


def test_a_message_of_another_strategy_or_with_non_finite_arrays_is_refused() -> None:
    with pytest.raises(ValueError, match="give gamma or radius, not both"):
        WAFL(gamma=1.0, radius=1.0)
    with pytest.raises(ValueError, match=r"no wafl-gamma: the server must use wafl\.flower\.WAFL"):
        train(linear(), batches(3), ask(FedAvg(), linear(), lr=0.1)[0], context())
    broken = linear()
    broken.bias.data[0] = math.inf
    with pytest.raises(ValueError, match="'bias' contains NaN or infinity"):
        train(linear(), batches(3), message_for(broken), context())
    empty = ask(WAFL(), linear())[0]
    del empty.content["arrays"]
    with pytest.raises(ValueError, match="0 records of type ArrayRecord"):
        train(linear(), batches(3), empty, context())


def plain(value: float) -> dict[str, np.ndarray]:
    return {"weight": np.full((4, 3), value), "bias": np.full(4, -value)}


def good(message: Message, value: float, examples: int, cost: float = 0.0) -> Message:
    return reply_with(message, plain(value), train_loss=value, num_examples=examples, transport_cost=cost)


def with_array(name: str, value: np.ndarray) -> dict[str, np.ndarray]:
    return {**plain(1.0), name: value}


def unreadable(message: Message) -> Message:
    reply = good(message, 1.0, 10)
    reply.content.array_records["arrays"]["bias"].data = b"PK\x03\x04 no array"
    return reply


def zeros() -> nn.Module:
    model = linear()
    model.load_state_dict({name: torch.zeros_like(value) for name, value in model.state_dict().items()})
    return model


@pytest.mark.parametrize(
    ("values", "mean"),
    [((1.0, -30.0), -0.75), ((1.0, 2.0, -30.0), -2 / 3), ((1.0, 2.4), 1.7), ((0.0, -30.0), -15.0), ((-30.0,), -30.0)],
    ids=["two", "three", "none is long", "one stands still", "alone"],
)
def test_an_update_much_longer_than_the_median_is_shortened_to_a_multiple_of_that(
    values: tuple[float, ...], mean: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two, the longer is compared with the shorter: 1 and -2.5 are left of 1 and -30."""
    for clip, expected in (({}, mean), ({"clip": math.inf}, sum(values) / len(values))):
        strategy = WAFL(gamma=0.5, min_train_nodes=1, min_available_nodes=1, **clip)
        messages = sorted(ask(strategy, zeros(), nodes=len(values)), key=lambda message: message.metadata.dst_node_id)
        caplog.clear()
        arrays, _ = strategy.aggregate_train(1, [good(m, value, 10) for m, value in zip(messages, values, strict=True)])
        assert arrays is not None
        assert arrays["weight"].numpy() == pytest.approx(np.full((4, 3), expected))
        assert arrays["bias"].numpy() == pytest.approx(np.full(4, -expected))
        output = f"Shortened the update of node {len(values) - 1}"
        assert (output in caplog.text) == (expected != sum(values) / len(values))


def test_a_client_that_claims_more_than_the_caps_is_left_out_by_its_node(caplog: pytest.LogCaptureFixture) -> None:
    strategy = WAFL(gamma=0.5, caps=wafl.Caps(examples=1000, cost=5.0))
    one, two, three = sorted(ask(strategy, zeros(), nodes=3), key=lambda message: message.metadata.dst_node_id)
    arrays, _ = strategy.aggregate_train(1, [good(one, 1.0, 10), good(two, 9.0, 10**6), good(three, 9.0, 10, 6.0)])
    assert arrays is not None
    assert arrays["bias"].numpy().tolist() == [-1.0] * 4
    assert "Left out the reply of node 1: claims 1000000 examples, above caps.examples = 1000" in caplog.text
    assert "Left out the reply of node 2: a cost of 6, above caps.cost = 5" in caplog.text


def test_a_count_and_a_cost_count_for_no_more_than_is_usual(caplog: pytest.LogCaptureFixture) -> None:
    strategy = WAFL(radius=0.5, caps=wafl.Caps(examples=10**6))
    messages = sorted(ask(strategy, zeros(), nodes=4), key=lambda message: message.metadata.dst_node_id)
    claims = [(1.0, 10**6, 1000.0), (0.0, 10, 0.25), (0.0, 10, 0.25), (0.0, 10, 0.25)]
    before = strategy.gamma
    arrays, _ = strategy.aggregate_train(1, [good(m, *claim) for m, claim in zip(messages, claims, strict=True)])
    assert arrays is not None
    assert arrays["bias"].numpy() == pytest.approx(np.full(4, -0.5)), "half of the weight, of four"
    cost = 0.5 * 0.625 + 0.5 * 0.25
    assert strategy.gamma == pytest.approx(before * math.sqrt(cost) / 0.5), "not doubled, as by a cost of 1000"
    assert "The num-examples of node 0, 1e+06, counts as 5e+05" in caplog.text
    assert "The transport-cost of node 0, 1e+03, counts as 0.625" in caplog.text


METRICS = {"train_loss": 1.0, "num_examples": 10, "transport_cost": 0.2}
BAD: dict[str, tuple[Callable[[Message], Message], str]] = {
    "NaN": (lambda m: reply_with(m, with_array("bias", np.full(4, np.nan)), **METRICS), "contains NaN"),
    "infinity": (lambda m: reply_with(m, with_array("bias", np.full(4, np.inf)), **METRICS), "contains NaN"),
    "shape": (lambda m: reply_with(m, with_array("bias", np.ones(5)), **METRICS), r"float64 of shape \(5,\)"),
    "type": (lambda m: reply_with(m, with_array("bias", np.ones(4, np.float32)), **METRICS), "is float32"),
    "name": (lambda m: reply_with(m, with_array("scale", np.ones(4)), **METRICS), "has: scale"),
    "missing": (lambda m: reply_with(m, {"bias": np.ones(4)}, **METRICS), "has: weight"),
    "bytes": (unreadable, "'bias' cannot be read"),
    "loss": (lambda m: reply_with(m, plain(1.0), **{**METRICS, "train_loss": math.nan}), "train-loss=nan"),
    "cost": (lambda m: reply_with(m, plain(1.0), **{**METRICS, "transport_cost": math.inf}), "cost=inf"),
    "negative": (lambda m: reply_with(m, plain(1.0), **{**METRICS, "transport_cost": -1.0}), "cost=-1.0"),
    "no cost": (lambda m: reply_with(m, plain(1.0), train_loss=1.0, num_examples=10), "cost=None"),
    "no weight": (lambda m: reply_with(m, plain(1.0), train_loss=1.0, transport_cost=0.1), "num-examples=None"),
    "zero weight": (lambda m: reply_with(m, plain(1.0), **{**METRICS, "num_examples": 0}), "num-examples=0"),
    "odd": (lambda m: reply_with(m, plain(1.0), **METRICS, extra=1.0), "other names"),
    "long": (lambda m: reply_with(m, plain(1.0), **{**METRICS, "train_loss": [1.0, 2.0]}), "other names"),
    "empty": (lambda m: Message(RecordDict(), reply_to=m), "0 ArrayRecords and 0 MetricRecords"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_left_out(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """It comes first, and FedAvg would take it for the pattern."""
    spoil, complaint = BAD[kind]
    strategy = WAFL(radius=0.5)
    messages = ask(strategy, linear(), nodes=3)
    first, *others = sorted(messages, key=lambda message: message.metadata.dst_node_id)
    replies = [
        spoil(first),
        *(good(message, value, 10, 0.2) for message, value in zip(others, (1.0, 2.0), strict=True)),
    ]
    arrays, metrics = strategy.aggregate_train(1, replies)
    assert arrays is not None
    assert metrics is not None
    np.testing.assert_allclose(arrays["weight"].numpy(), 1.5)
    assert strategy.gamma == pytest.approx(1e6 * math.sqrt(math.sqrt(0.2) / 0.5))
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "Left out the reply of node 0" in line
    assert re.search(complaint, line)


@pytest.mark.parametrize("came", [0, 2])
def test_without_a_usable_reply_the_model_is_kept_with_a_warning(came: int, caplog: pytest.LogCaptureFixture) -> None:
    strategy = WAFL(radius=0.5)
    messages = ask(strategy, linear())
    bad = [BAD["NaN"][0](messages[0]), Message(Error(1, "out of memory"), reply_to=messages[1])]
    assert strategy.aggregate_train(4, bad[:came]) == (None, None)
    assert strategy.gamma == 1e6
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings[-1] == f"round 4: none of {came} replies can be used; the model is kept"
    if came:
        assert any("out of memory" in record.getMessage() for record in caplog.records)


def failing(message: Message, ctx: Context) -> Message:
    return Message(Error(1, "no data"), reply_to=message)


def test_a_flower_run_continues_after_rounds_that_failed() -> None:
    """One client sends NaN twice and another fails: until then, the model stays the initial one."""
    sent: list[Tensor] = []

    def fickle(message: Message, ctx: Context) -> Message:
        sent.append(message.content.array_records["arrays"].to_torch_state_dict()["weight"])
        if len(sent) < 3:
            return BAD["NaN"][0](message)
        return train(linear(), batches(4), message, ctx)

    strategy = WAFL(gamma=0.5, fraction_evaluate=0.0)
    grid: Any = Grid(fickle, failing)
    result = strategy.start(grid, ArrayRecord(linear().state_dict()), 4, train_config=ConfigRecord({"lr": 0.1}))
    start = linear().state_dict()["weight"]
    assert [torch.equal(weight, start) for weight in sent] == [True, True, True, False]
    assert sorted(result.train_metrics_clientapp) == [3, 4]


class Adaptive(WAFL, FedAdam):
    """Flower's FedAdam computes in double precision."""


class Proximal(WAFL, FedProx):
    """Clients hold on to the server's model."""


def single() -> nn.Module:
    """A model in single precision with a counter, which no server may change."""
    model = linear().float()
    model.register_buffer("seen", torch.tensor(7))
    return model


def test_flowers_adam_trains_what_wafl_moved() -> None:
    """One round of FedAdam by hand, from the mean of the clients' models; the arrays keep their types."""
    strategy = Adaptive(gamma=0.5, eta=0.1, eta_l=0.1, tau=1e-3)
    messages = ask(strategy, single(), lr=0.3)
    replies = [train(single(), batches(4, seed=k, dtype=torch.float32), m, context(k)) for k, m in enumerate(messages)]
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None
    result, start = arrays.to_torch_state_dict(), single().state_dict()
    assert {name: value.dtype for name, value in result.items()} == {name: v.dtype for name, v in start.items()}
    assert int(result["seen"]) == 7
    for name in ("weight", "bias"):
        mean = torch.stack([state_of(reply)[name] for reply in replies]).double().mean(0)
        change = mean - start[name].double()
        first, second = 0.1 * change, 0.01 * change.square()  # beta_1 = 0.9, beta_2 = 0.99
        rate = 0.1 * math.sqrt(1 - 0.99**2) / (1 - 0.9**2)  # round 1, as Flower corrects it
        expected = start[name].double() + rate * first / (second.sqrt() + 1e-3)
        torch.testing.assert_close(result[name].double(), expected, rtol=0, atol=1e-6)


def test_flowers_proximal_term_is_added_to_every_step() -> None:
    """Without a ball, two steps of FedProx by autograd."""
    mu, rate = 3.0, 0.3
    message = ask(Proximal(gamma=1e9, proximal_mu=mu), linear(), lr=rate)[0]
    loader = batches(4, 5)
    result = state_of(train(linear(), loader, message, context()))
    model, start = linear(), dict(linear().named_parameters())
    for x, y in loader:
        held = sum((value - start[name].detach()).square().sum() for name, value in model.named_parameters())
        gradients = torch.autograd.grad(cross_entropy(model(x), y).mean() + mu / 2 * held, list(model.parameters()))
        with torch.no_grad():
            for value, gradient in zip(model.parameters(), gradients, strict=True):
                value -= rate * gradient
    for name, value in model.state_dict().items():
        torch.testing.assert_close(result[name], value, rtol=0, atol=1e-7)
    with pytest.raises(ValueError, match=r"proximal-mu=-1.0 must be finite and at least 0"):
        train(linear(), loader, ask(WAFL(gamma=1.0), linear(), **{"lr": 0.1, "proximal-mu": -1.0})[0], context())


def test_your_own_optimizer_takes_the_steps() -> None:
    """Adam on the gradients at the moved examples: gamma is so large that they do not move."""
    message = message_for(network(), gamma=1e9)
    loader, model = batches(4, 5), network()
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    result = state_of(train(model, loader, message, context(), optimizer=optimizer))
    other = network()
    adam = torch.optim.Adam(other.parameters(), 0.05)
    for x, y in loader:
        adam.zero_grad()
        cross_entropy(other(x), y).mean().backward()
        adam.step()
    for name, value in other.state_dict().items():
        torch.testing.assert_close(result[name], value, rtol=0, atol=1e-7)
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=1e-7)
    with pytest.raises(ValueError, match=r"lr=0.1 and optimizer are both given"):
        train(model, loader, message, context(), optimizer=optimizer, lr=0.1)
    with pytest.raises(ValueError, match=r"the optimizer lacks 0.weight, .*model.parameters\(\)"):
        train(network(), loader, message, context(), optimizer=optimizer)


def test_batches_may_be_dicts_or_more_than_a_pair() -> None:
    plain = batches(4, 5)
    message = message_for(linear(), gamma=0.5)
    expected = state_of(train(linear(), plain, message, context()))
    names = [("pixel_values", "labels"), ("image", "label"), ("img", "label"), ("x", "y")]
    forms: list[Any] = [
        *([{inputs: x, labels: y, "index": torch.arange(len(y))} for x, y in plain] for inputs, labels in names),
        [(x, y, torch.arange(len(y))) for x, y in plain],
    ]
    for loader in forms:
        result = state_of(train(linear(), loader, message, context()))
        assert all(torch.equal(result[name], value) for name, value in expected.items())


def test_a_flower_run_in_which_nobody_could_train_fails() -> None:
    strategy = WAFL(gamma=0.5, fraction_evaluate=0.0)
    grid: Any = Grid(failing, failing)
    with pytest.raises(TooFewRepliesError, match=r"no client could train in any of 2 rounds"):
        strategy.start(grid, ArrayRecord(linear().state_dict()), 2, train_config=ConfigRecord({"lr": 0.1}))


def test_batch_normalization_is_refused_with_remedies_that_there_are() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)))
    with pytest.raises(ValueError, match=r"BatchNorm1d at '1' .*eval\(\).*GroupNorm") as caught:
        train(model, batches(4), message_for(model, gamma=0.5), context())
    assert "statistics=" not in str(caught.value)


def length(arrays: ArrayRecord | dict[str, Tensor], start: nn.Module) -> float:
    state = arrays.to_torch_state_dict() if isinstance(arrays, ArrayRecord) else arrays
    return math.sqrt(sum(float((state[name] - value).square().sum()) for name, value in start.state_dict().items()))


def test_flowers_server_side_clipping_bounds_the_update() -> None:
    clip = 0.01
    strategy = DifferentialPrivacyServerSideFixedClipping(WAFL(gamma=0.5), 0.0, clip, 2)
    messages = ask(strategy, linear(), lr=0.5)
    replies = [train(linear(), batches(6), message, context()) for message in messages]
    assert length(state_of(replies[0]), linear()) > 10 * clip
    arrays, metrics = strategy.aggregate_train(1, replies)
    assert arrays is not None
    assert metrics is not None
    assert length(arrays, linear()) == pytest.approx(clip, rel=1e-6)  # both clients have the same data
    assert metrics["gamma"] == 0.5
    train(linear(), batches(6), ask(strategy, loaded(linear(), arrays), lr=0.5)[0], context())


def test_flowers_adaptive_clipping_finds_its_own_metric_next_to_ours() -> None:
    strategy = DifferentialPrivacyClientSideAdaptiveClipping(WAFL(gamma=0.5), 0.0, 2, 0.01)
    messages = ask(strategy, linear(), lr=0.5)
    replies = [adaptiveclipping_mod(message, context(), client_of(batches(6))) for message in messages]
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None
    assert length(arrays, linear()) == pytest.approx(0.01, rel=1e-6)
    assert strategy.clipping_norm != 0.01
