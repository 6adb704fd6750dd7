"""Models of your own: whatever layers they have, they train as in a plain loop over the clients."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import wafl
from tests.oracles import plain
from tests.train.networks import SIZES, TIMING, Normalized, images, seeded
from wafl.tasks import fitness
from wafl.tasks.structured import make_task

WAFL = wafl.WAFL(gamma=2.0, steps=3)


def assert_same_params(run: wafl.Run, expected: dict[str, Tensor], start: nn.Module, atol: float = 1e-6) -> None:
    assert run.params.keys() <= expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(dict(run.model.named_parameters())[name], value, rtol=0, atol=atol)
        if name in run.params:
            assert float((value - start.get_parameter(name).detach()).abs().max()) > 1e-4


# -- What vmap cannot batch ---------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.GRU(3, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x)[0][:, -1])


class Cube(torch.autograd.Function):
    """An operation without rules for ``torch.func``, as a custom kernel has none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * grads[0]


class Kernel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(18, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(Cube.apply(self.first(x.flatten(1)).tanh()))  # pyright: ignore


UNBATCHED = {"GRU": Recurrent, "own operation": Kernel}


@pytest.mark.parametrize("name", UNBATCHED)
def test_a_model_that_cannot_be_batched_trains_as_in_a_plain_loop(name: str):
    model, pairs = seeded(UNBATCHED[name]), images()
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0)
    with pytest.warns(wafl.SequentialWarning, match="one after another.*Results are the same"):
        run = wafl.fit(model, clients, wafl.WAFL(gamma=2.0, tolerance=0, steps=2), **TIMING)
    expected = plain.train(model, pairs, **TIMING, gamma=2.0, steps=2)
    assert_same_params(run, expected, model)


def test_the_warning_points_at_the_call_and_comes_once_per_training():
    clients = wafl.Federation.from_arrays(images(), test_fraction=0.3)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run = wafl.fit(seeded(Recurrent), clients, WAFL, **TIMING)
        wafl.evaluate(run, clients, attack=wafl.PGD(epsilon=0.1, steps=2))
        run.predict(images()[0][0])
    assert [each.filename for each in seen if each.category is wafl.SequentialWarning] == [__file__]


def test_large_convolutions_are_computed_one_client_after_another_without_a_warning(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fitness, "BUSY", 100)
    layers = nn.Conv1d(6, 8, 2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)
    model, pairs = seeded(lambda: nn.Sequential(*layers)), images()
    task, (x, y) = make_task(model), pairs[0]
    fitness.find_traits(task, task.initial()[None], x[None, :1], y[None, :1])
    assert task.traits.busy
    assert task.steady
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0)
    run = wafl.fit(model, clients, wafl.WAFL(gamma=2.0, tolerance=0, steps=2), **TIMING)
    assert_same_params(run, plain.train(model, pairs, **TIMING, gamma=2.0, steps=2), model)


# -- Dropout ------------------------------------------------------------------------------------------------------


class Dropping(nn.Module):
    """Drops whole channels, single values and, by a function, values of another rate."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.channels = nn.Conv1d(6, 4, 2), nn.Dropout1d(0.4)
        self.middle, self.values, self.head = nn.Linear(8, 7), nn.Dropout(0.5), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.channels(self.conv(x)).tanh().flatten(1)
        h = self.values(self.middle(h)).tanh()
        return self.head(functional.dropout(h, 0.25, training=self.training))


def dropping(model: nn.Module, x: Tensor, delta: Tensor, step: plain.Step) -> Tensor:
    size = len(x)
    h = model.get_submodule("conv")(x + delta) * step.mask(0, (size, 4, 1), 0.4)
    h = model.get_submodule("middle")(h.tanh().flatten(1)) * step.mask(1, (size, 7), 0.5)
    return model.get_submodule("head")(h.tanh() * step.mask(2, (size, 7), 0.25))


@pytest.mark.parametrize("gamma", [None, 2.0])
def test_dropout_masks_come_from_the_key_and_one_mask_serves_the_whole_step(gamma: float | None):
    """The objective ascends the very network that then learns."""
    model, pairs = seeded(Dropping), images()
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0)
    method = wafl.FedAvg() if gamma is None else wafl.WAFL(gamma=gamma, tolerance=0, steps=4)
    run = wafl.fit(model, clients, method, **TIMING)
    assert_same_params(run, plain.train(model, pairs, **TIMING, gamma=gamma, steps=4, forward=dropping), model)


def test_training_with_dropout_leaves_the_global_generator_alone_and_repeats():
    clients = wafl.Federation.from_arrays(images(), test_fraction=0)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = wafl.fit(seeded(Dropping), clients, WAFL, **TIMING)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(8)
    second = wafl.fit(seeded(Dropping), clients, WAFL, **TIMING)
    other = wafl.fit(seeded(Dropping), clients, WAFL, **{**TIMING, "seed": 8})
    assert all(torch.equal(first.params[name], second.params[name]) for name in first.params)
    assert not torch.equal(first.params["head.weight"], other.params["head.weight"])


def test_evaluation_and_predictions_drop_nothing():
    clients = wafl.Federation.from_arrays(images(), test_fraction=0.4)
    run = wafl.fit(seeded(Dropping), clients, wafl.FedAvg(), **TIMING)
    x, y = clients.test.x, clients.test.y
    still = run.model.eval()(x).detach()
    run.model.train()
    torch.testing.assert_close(run.outputs(x), still)
    assert run.model.training
    score = wafl.evaluate(run, clients)
    assert score.loss == pytest.approx(float(functional.cross_entropy(still, y)), rel=1e-9)


class OwnNoise(nn.Module):
    def __init__(self, always: bool = False) -> None:
        super().__init__()
        self.always, self.layer = always, nn.Linear(18, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x.flatten(1))
        return out + torch.randn_like(out) if self.training or self.always else out


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(18, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1  # pyright: ignore
        return self.layer(x.flatten(1))


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(3, 1, dropout=0.5, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x)[0].mean(1))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (OwnNoise, "OwnNoise draws from torch's global generator while it trains.*torch.nn.Dropout"),
        (lambda: OwnNoise(always=True), "draws random numbers even in evaluation"),
        (Attending, "Attending draws from .*inside of attention, LSTM or GRU must be 0"),
        (Counting, r"Counting changes its buffer 'calls' while it trains.*eval\(\)"),
        (lambda: nn.Sequential(nn.Flatten(), nn.AlphaDropout(0.5), nn.Linear(18, 3)), "global generator"),
    ],
)
def test_hidden_randomness_and_hidden_state_are_refused_with_the_remedy(model: Any, message: str):
    clients = wafl.Federation.from_arrays(images(), test_fraction=0)
    with pytest.raises(ValueError, match=message):
        wafl.fit(seeded(model), clients, wafl.FedAvg(), **TIMING)


# -- Batch normalization with the statistics that it has ----------------------------------------------------------


def test_frozen_batch_norm_trains_with_the_statistics_it_has():
    model, pairs = seeded(Normalized), images()
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0)
    run = wafl.fit(model, clients, wafl.WAFL(gamma=2.0, tolerance=0, steps=2), **TIMING)
    assert_same_params(run, plain.train(model, pairs, **TIMING, gamma=2.0, steps=2), model)
    for name, value in model.named_buffers():
        assert torch.equal(run.model.get_buffer(name), value)


class Offset(nn.Module):
    def __init__(self, shape: tuple[int, ...] = (3,), name: str = "offset") -> None:
        super().__init__()
        self.layer = nn.Linear(18, 3)
        self.register_buffer(name, torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1)) + next(self.buffers()).sum()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Offset((2,)), r"buffer offset has shape \(3,\) in the file and \(2,\) in the model"),
        (Offset(name="shift"), "buffer (offset|shift) is only in the (file|model): pass the model that was saved"),
    ],
)
def test_buffers_that_differ_from_the_saved_ones_are_refused_on_load(tmp_path: Any, other: nn.Module, message: str):
    clients = wafl.Federation.from_arrays(images(dtype=torch.float32), test_fraction=0)
    wafl.fit(Offset(), clients, wafl.FedAvg(), **TIMING).save(tmp_path)
    with pytest.raises(ValueError, match=message):
        wafl.load_run(tmp_path, model=other)


# -- Text, and a ball at a layer ----------------------------------------------------------------------------------


class Words(nn.Module):
    """The mean of the embedded words that are not padding, and two layers; dropout behind the embedding."""

    def __init__(self, casts: bool = False) -> None:
        super().__init__()
        self.casts = casts
        self.embedding, self.middle, self.drop = nn.Embedding(11, 4), nn.Linear(4, 5), nn.Dropout(0.3)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.long() if self.casts else x
        present = (x > 0)[..., None]
        mean = (self.embedding(x) * present).sum(1) / present.sum(1)
        return self.head(self.drop(self.middle(mean).tanh()))


def reading(model: nn.Module, x: Tensor, delta: Tensor, step: plain.Step) -> Tensor:
    words, present = x.long(), (x > 0)[..., None]
    mean = ((model.get_submodule("embedding")(words) + delta) * present).sum(1) / present.sum(1)
    h = model.get_submodule("middle")(mean).tanh() * step.mask(0, (len(x), 5), 0.3)
    return model.get_submodule("head")(h)


def texts() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(6)
    pairs: list[tuple[Tensor, Tensor]] = []
    for size in SIZES:
        x = torch.randint(1, 11, (size, 5), generator=generator)
        x[: size // 2, 3:] = 0
        pairs.append((x, torch.arange(size) % 3))
    return pairs


AT_EMBEDDING = wafl.WAFL(gamma=0.5, tolerance=0, steps=3, space="embedding")


@pytest.mark.parametrize("casts", [False, True])
def test_a_ball_at_the_embedding_trains_a_text_model_as_in_a_plain_loop(casts: bool):
    """The embedding itself learns too."""
    model, pairs = seeded(Words, casts=casts), texts()
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0)
    run = wafl.fit(model, clients, AT_EMBEDDING, **TIMING)
    expected = plain.train(
        model, pairs, **TIMING, gamma=0.5, steps=3, forward=reading,
        moved=lambda model, x: model.get_submodule("embedding")(x.long()),
    )  # fmt: skip
    assert_same_params(run, expected, model)
    assert min(run.history.column("achieved_radius")) > 1e-3
    words = pairs[0][0]
    assert torch.equal(run.predict(words), run.predict(words.double()))


def test_a_ball_at_a_layer_that_changes_nothing_is_a_ball_at_the_inputs():
    model = seeded(lambda: nn.Sequential(nn.Identity(), nn.Flatten(), nn.Linear(18, 3)))
    clients = wafl.Federation.from_arrays(images(), test_fraction=0.4)
    methods = {None: wafl.WAFL(radius=0.3), "0": wafl.WAFL(radius=0.3, space="0")}
    runs = {space: wafl.fit(model, clients, method, **TIMING) for space, method in methods.items()}
    for name, value in runs[None].params.items():
        torch.testing.assert_close(runs["0"].params[name], value, rtol=0, atol=1e-6)
    for attack in (wafl.PGD, wafl.FGSM):
        plainly, layered = (
            wafl.evaluate(runs[None], clients, attack=attack(0.2, space=space)) for space in (None, "1")
        )
        assert layered.loss == pytest.approx(plainly.loss, rel=1e-9)
        assert "at the output of 1" in str(layered)


def test_pgm_at_a_layer_stays_in_its_ball():
    clients = wafl.Federation.from_arrays(texts(), test_fraction=0)
    run = wafl.fit(seeded(Words), clients, wafl.FedPGM(epsilon=0.2, norm=2, steps=3, space="embedding"), **TIMING)
    assert max(run.history.column("achieved_radius")) == pytest.approx(0.2, rel=1e-6)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.unused, self.cells = nn.Linear(3, 3), nn.Linear(3, 3), nn.RNN(3, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(self.layer(self.layer(x)))[0][:, -1]


@pytest.mark.parametrize(
    ("model", "method", "message"),
    [
        (Words, wafl.WAFL(radius=0.1), "Words takes integers.* such as space='embedding'"),
        (lambda: Words(casts=True), wafl.FedFGSM(), "no gradient in its inputs.* such as space='embedding'"),
        (Words, wafl.WAFL(space="embed"), "space='embed' is not a layer of the model, which has: embedding, middle"),
        (Twice, wafl.WAFL(space="layer"), "space='layer': the model calls this layer 2 times"),
        (Twice, wafl.WAFL(space="unused"), "space='unused': the model never calls this layer"),
        (Twice, wafl.WAFL(space="cells"), "does not give a floating-point tensor, but a tuple"),
    ],
)
@pytest.mark.filterwarnings("ignore::wafl.SequentialWarning")
def test_a_ball_that_cannot_be_there_is_refused_before_any_work(model: Any, method: wafl.Method, message: str):
    pairs = images() if model is Twice else texts()
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0)
    with pytest.raises(ValueError, match=message):
        wafl.fit(seeded(model), clients, method, **TIMING, callbacks=[lambda moment: pytest.fail("work was done")])


def test_an_attack_on_integers_is_refused_with_the_layer_to_name():
    clients = wafl.Federation.from_arrays(texts(), test_fraction=0.3)
    run = wafl.fit(seeded(Words), clients, wafl.FedAvg(), **TIMING)
    with pytest.raises(ValueError, match=r"Words takes integers.* such as space='embedding'"):
        wafl.evaluate(run, clients, attack=wafl.PGD(epsilon=0.1))
    score = wafl.evaluate(run, clients, attack=wafl.PGD(epsilon=0.5, space="embedding"))
    assert score.loss > wafl.evaluate(run, clients).loss


@pytest.mark.parametrize("options", [{"space": ""}, {"space": 3}, {"space": "embedding", "bounds": (0, 1)}])
def test_a_space_that_is_no_name_or_has_bounds_is_refused(options: dict[str, Any]):
    for make in (wafl.WAFL, wafl.FedPGM, wafl.FedFGSM):
        with pytest.raises(ValueError, match="space="):
            make(**options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x + 5, "Words does not take an example with integers from \\d to 1\\d: index out of range"),
        (lambda x: x / 2, "Words takes integers, and the examples contain other numbers"),
        (lambda x: x + 2**25, "client 0 has integers up to .* in x: at most 16777216 are exact"),
    ],
)
def test_integers_outside_the_vocabulary_are_refused_before_any_work(change: Any, message: str):
    """The first examples, which are tried in any case, are good."""
    pairs = [*texts()[:2], (change(texts()[2][0]), texts()[2][1])]
    if "hold other" in message:
        pairs = [(x.double(), y) for x, y in pairs]
    with pytest.raises(ValueError, match=message.replace("client 0", "client 2")):
        wafl.fit(
            seeded(Words), wafl.Federation.from_arrays(pairs, test_fraction=0), wafl.FedAvg(), **TIMING,
            callbacks=[lambda moment: pytest.fail("work was done")],
        )  # fmt: skip


# -- A frozen backbone --------------------------------------------------------------------------------------------


class Backbone(nn.Module):
    """Frozen; notes how many examples pass through it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(18, 6)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        SEEN.append(len(x))
        return self.layer(x.flatten(1)).tanh()


SEEN: list[int] = []


class Tuned(nn.Module):
    """A frozen backbone and a head; ``skips`` passes the inputs on to the head too."""

    def __init__(self, skips: bool = False) -> None:
        super().__init__()
        self.skips, self.backbone, self.middle = skips, Backbone(), nn.Linear(6, 5)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.middle(self.backbone(x))
        h = h + x.flatten(1)[:, :5] if self.skips else h
        return self.head(self.drop(h.tanh()))


def tuned(model: nn.Module, x: Tensor, delta: Tensor, step: plain.Step) -> Tensor:
    h = model.get_submodule("middle")(model.get_submodule("backbone")(x) + delta)
    h = h + x.flatten(1)[:, :5] if model.skips else h  # pyright: ignore
    return model.get_submodule("head")(h.tanh() * step.mask(0, (len(x), 5), 0.3))


def in_sequence() -> nn.Module:
    return nn.Sequential(nn.Identity(), Backbone(), nn.Linear(6, 3))


def sequence(model: nn.Module, x: Tensor, delta: Tensor, step: plain.Step) -> Tensor:
    return model.get_submodule("2")(model.get_submodule("1")(x) + delta)


@pytest.mark.parametrize(
    ("make", "space", "forward", "once"),
    [
        (Tuned, "backbone", tuned, True),
        (lambda: Tuned(skips=True), "backbone", tuned, False),
        (in_sequence, "1", sequence, True),
    ],
)
def test_a_frozen_backbone_before_the_ball_is_computed_once(make: Any, space: str, forward: Any, once: bool):
    """Not so if the inputs reach the head by another way; the numbers equal a plain loop's in any case."""
    model, pairs = seeded(make), images()
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0)
    SEEN.clear()
    run = wafl.fit(model, clients, wafl.WAFL(gamma=0.5, tolerance=0, steps=4, space=space), **TIMING)
    together = [count for count in SEEN if count > 2]  # one or two are tried before any work
    assert (together == [sum(SIZES)]) == once
    assert not any(name.startswith((f"{space}.", "backbone")) for name in run.params)
    expected = plain.train(
        model,
        pairs,
        **TIMING,
        gamma=0.5,
        steps=4,
        forward=forward,
        moved=lambda model, x: model.get_submodule(space)(x),
    )
    assert_same_params(run, expected, model)
