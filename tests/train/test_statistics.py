"""BatchNorm whose running statistics are learned: as in a plain loop over the clients, averaged or kept by each."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wafl
from tests.oracles import plain
from tests.train.networks import TIMING, Normalized, images, seeded
from wafl.base.files import sealed, unsealed
from wafl.servers import AGGREGATES
from wafl.train.checkpoint.checkpoint import Checkpoint

ALL = pytest.mark.parametrize("statistics", ["averaged", "client", "fedbn"])
WAFL = wafl.WAFL(gamma=2.0, tolerance=0, steps=2)


class Twofold(Normalized):
    """Two BatchNorm layers in training mode, the second on vectors and with another momentum."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.BatchNorm1d(8, momentum=0.4, affine=False)
        self.norm.train()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.norm(self.conv(x)).tanh().flatten(1)))


def clients_of(pairs: list[tuple[Tensor, Tensor]], test_fraction: float = 0.0) -> wafl.Federation:
    return wafl.Federation.from_arrays(pairs, test_fraction=test_fraction)


def values(run: wafl.Run) -> dict[str, Tensor]:
    """The parameters and statistics of a run's model."""
    return {name: value for name, value in run.model.state_dict().items() if value.is_floating_point()}


def assert_near(run: wafl.Run, expected: dict[str, Tensor], atol: float = 1e-6) -> None:
    assert values(run).keys() == expected.keys()
    for name, value in values(run).items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=atol)


def assert_same_bits(one: wafl.Run, other: wafl.Run) -> None:
    assert all(torch.equal(value, values(other)[name]) for name, value in values(one).items())


@ALL
@pytest.mark.parametrize("method", [wafl.FedAvg(), WAFL], ids=["FedAvg", "WAFL"])
def test_statistics_are_learned_as_in_a_plain_loop_over_unequal_clients(statistics: str, method: wafl.Method):
    """Sizes 5, 7 and 3 in batches of 3: the last of the 7 is a batch of one example, and every batch is padded."""
    model, pairs = seeded(Twofold), images()
    timing: dict[str, Any] = {**TIMING, "rounds": 3}
    run = wafl.fit(model, clients_of(pairs), method, **timing, statistics=statistics)
    still = copy.deepcopy(model).eval()
    gamma = 2.0 if method is WAFL else None
    batches: dict[str, Any] = {**timing, "gamma": gamma, "steps": 2, "statistics": statistics}
    assert_near(run, plain.train(still, pairs, **batches))
    for name, value in model.named_buffers():
        assert not value.is_floating_point() or float((run.model.get_buffer(name) - value).abs().max()) > 0.01
    assert run.params.keys() == dict(model.named_parameters()).keys()
    assert list(run.layout.statistics) == [
        f"{layer}.{name}" for layer in ("norm", "second") for name in ("running_mean", "running_var")
    ]


@ALL
def test_a_run_resumes_to_the_same_bits(statistics: str, tmp_path: Any):
    timing: dict[str, Any] = {**TIMING, "rounds": 4, "cohort": 2, "statistics": statistics}

    def stop(moment: Any) -> None:
        if moment.record.round == 1:
            raise KeyboardInterrupt

    def fit(**options: Any) -> wafl.Run:
        return wafl.fit(seeded(Twofold), clients_of(images()), wafl.FedAvg(), **timing, **options)

    with pytest.raises(KeyboardInterrupt):
        fit(checkpoint=Checkpoint(tmp_path), callbacks=[stop])
    assert_same_bits(fit(), fit(checkpoint=Checkpoint(tmp_path)))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (wafl.FedProx(mu=0.5), {"weight_decay": 0.1, "momentum": 0.5}),
        (wafl.FedAdam(), {}),
        (wafl.FedAvg(), {"clip_norm": 1e-9}),
        (wafl.FedAvg(), {"server_learning_rate": 1e-9}),
    ],
)
def test_nothing_but_batches_moves_statistics(method: wafl.Method, options: dict[str, Any]):
    """With a tiny learning rate, what pulls, clips or scales parameters leaves them where plain averaging does."""
    timing: dict[str, Any] = {**TIMING, "rounds": 1, "learning_rate": 1e-12, "statistics": "averaged"}
    plainly = wafl.fit(seeded(Twofold), clients_of(images()), wafl.FedAvg(), **timing)
    other = wafl.fit(seeded(Twofold), clients_of(images()), method, **timing, **options)
    for name, value in plainly.model.named_buffers():
        torch.testing.assert_close(other.model.get_buffer(name), value, rtol=0, atol=1e-9)


METHODS = {name: preset() for name, preset in wafl.METHODS.items() if preset().server != wafl.FedAvg().server}
METHODS |= {name: wafl.FedAvg(server=kind()) for name, kind in AGGREGATES.items()}


def averaged(method: wafl.Method) -> wafl.Run:
    """Train with a tiny learning rate, so that only the statistics move."""
    timing: dict[str, Any] = {**TIMING, "learning_rate": 1e-12, "statistics": "averaged"}
    return wafl.fit(seeded(Twofold), clients_of(images() * 3), method, **timing)


@pytest.fixture(scope="module")
def plainly() -> wafl.Run:
    return averaged(wafl.FedAvg())


@pytest.mark.parametrize("name", METHODS)
def test_statistics_are_averaged_whatever_the_server_does(name: str, plainly: wafl.Run) -> None:
    """A server that saw the statistics would move them elsewhere."""
    other = averaged(METHODS[name])
    for buffer, value in plainly.model.named_buffers():
        torch.testing.assert_close(other.model.get_buffer(buffer), value, rtol=0, atol=1e-9)


@pytest.mark.filterwarnings("ignore::wafl.base.errors.TrainingWarning")
@pytest.mark.parametrize("name", METHODS)
def test_no_server_makes_a_variance_negative(name: str) -> None:
    timing: dict[str, Any] = {**TIMING, "rounds": 4, "statistics": "averaged"}
    run = wafl.fit(seeded(Twofold), clients_of(images() * 3), METHODS[name], **timing)
    variances = [value for buffer, value in run.model.named_buffers() if buffer.endswith("running_var")]
    assert all(float(value.min()) > 0 for value in variances)


@pytest.mark.parametrize("method", [wafl.SCAFFOLD(), wafl.DRFA(), wafl.AFL(), wafl.FedRobust()], ids=lambda m: m.name)
def test_every_kind_of_method_trains_with_the_layers_of_each_client(method: wafl.Method):
    timing: dict[str, Any] = {"rounds": 2, "local_steps": 1, "learning_rate": 0.1, "statistics": "fedbn"}
    run = wafl.fit(seeded(Twofold), clients_of(images()), method, **timing)
    assert all(bool(torch.isfinite(value).all()) for value in values(run).values())
    assert float(run.model.get_buffer("second.running_var").min()) > 0


@ALL
def test_a_saved_run_is_tested_with_the_mean_of_its_clients_statistics(statistics: str, tmp_path: Any):
    clients = clients_of(images(), test_fraction=0.4)
    run = wafl.fit(seeded(Twofold), clients, wafl.FedAvg(), **TIMING, statistics=statistics)
    run.save(tmp_path)
    x, y = clients.test.x, clients.test.y
    still = copy.deepcopy(run.model).eval()(x).detach()
    expected = float(nn.functional.cross_entropy(still, y))
    for each in (run, wafl.load_run(tmp_path, model=seeded(Twofold))):
        assert torch.equal(each.outputs(x), still)
        assert wafl.evaluate(each, clients).loss == pytest.approx(expected, rel=1e-9)
        assert wafl.compare({"it": each}, clients).rows[0].score.loss == pytest.approx(expected, rel=1e-9)


def moved_far(model: nn.Module, x: Tensor) -> None:
    """Whatever a user may do to a model: train it, call it, change what it holds, move it."""
    model.train()
    for _ in range(20):
        model(torch.zeros_like(x))
    with torch.no_grad():
        for value in (*model.parameters(), *model.buffers()):
            value.zero_()
    model.to("meta")


def test_the_model_of_a_run_shares_nothing_with_it(tmp_path: Any):
    clients = clients_of(images(), test_fraction=0.4)
    run = wafl.fit(seeded(Twofold), clients, WAFL, **TIMING, statistics="averaged")
    x, mine = clients.test.x, run.model
    assert not any(layer.training for layer in mine.modules())
    assert run.model is mine
    before, score = run.outputs(x), wafl.evaluate(run, clients)
    for _ in range(20):
        run.model(torch.zeros_like(x))
    assert torch.equal(run.model(x).detach(), before)
    held = {value.data_ptr() for value in (*run.params.values(), *run.module.parameters(), *run.module.buffers())}
    assert held.isdisjoint(value.data_ptr() for value in (*mine.parameters(), *mine.buffers()))
    moved_far(mine, x)
    assert torch.equal(run.outputs(x), before)
    assert wafl.evaluate(run, clients) == score
    assert torch.equal(run.params["norm.weight"], run.module.get_parameter("norm.weight"))
    loaded = wafl.load_run(run.save(tmp_path), model=seeded(Twofold))
    assert torch.equal(loaded.outputs(x), before)
    assert torch.equal(loaded.model(x).detach(), before)


def test_a_run_moves_to_a_device_as_another_run():
    run = wafl.fit(seeded(Twofold), clients_of(images()), wafl.FedAvg(), **TIMING, statistics="averaged")
    on_meta = run.to("meta")
    for each, device in ((on_meta, "meta"), (run, "cpu")):
        tensors = (*each.params.values(), *each.module.state_dict().values(), *each.model.state_dict().values())
        assert {value.device.type for value in tensors} == {device}
    assert on_meta.layout == run.layout


def test_a_saved_run_says_which_statistics_were_learned_whatever_the_mode_of_its_model(tmp_path: Any):
    clients = clients_of(images(), test_fraction=0.4)
    run = wafl.fit(seeded(Twofold), clients, wafl.FedAvg(), **TIMING, statistics="averaged")
    run.save(tmp_path)
    for model in (seeded(Twofold), seeded(Twofold).eval()):
        loaded = wafl.load_run(tmp_path, model=model)
        assert loaded.layout == run.layout
        assert wafl.evaluate(loaded, clients) == wafl.evaluate(run, clients)
    partly = wafl.fit(seeded(Normalized), clients, wafl.FedAvg(), **TIMING)
    partly.save(tmp_path / "frozen")
    loaded = wafl.load_run(tmp_path / "frozen", model=seeded(Normalized).train())
    assert loaded.layout == partly.layout
    assert not loaded.layout.statistics
    assert wafl.evaluate(loaded, clients) == wafl.evaluate(partly, clients)


def test_without_a_saved_layout_the_mode_of_the_model_says_what_was_learned(tmp_path: Any):
    clients = clients_of(images(), test_fraction=0.4)
    run = wafl.fit(seeded(Twofold), clients, wafl.FedAvg(), **TIMING, statistics="averaged")
    file = run.save(tmp_path) / "run.json"
    about = unsealed(file.read_bytes())
    del about["statistics"]
    file.write_bytes(sealed(about))
    assert wafl.load_run(tmp_path, model=seeded(Twofold)).layout == run.layout
    loaded = wafl.load_run(tmp_path, model=seeded(Twofold).eval())
    assert not loaded.layout.statistics
    assert wafl.evaluate(loaded, clients) == wafl.evaluate(run, clients)


def test_a_ball_at_a_layer_lets_statistics_before_it_be_learned():
    backbone = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(18)).requires_grad_(False)
    model = nn.Sequential(backbone, nn.Linear(18, 3)).double()
    run = wafl.fit(
        model, clients_of(images()), wafl.WAFL(gamma=2.0, space="0", steps=2), **TIMING, statistics="averaged"
    )
    still = copy.deepcopy(model).eval()
    expected = plain.train(still, images(), **TIMING, statistics="averaged")
    for name in ("0.1.running_mean", "0.1.running_var"):  # the ball is behind this layer
        torch.testing.assert_close(run.model.get_buffer(name), expected[name], rtol=0, atol=1e-9)


class Folded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(3), nn.Linear(18, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x.flatten(0, 1)).view_as(x).flatten(1))


@pytest.mark.parametrize(
    ("model", "statistics", "message"),
    [
        (
            Twofold,
            "frozen",
            r"BatchNorm1d at 'norm'.*eval\(\).*statistics='averaged', 'client' or 'fedbn'.*GroupNorm",
        ),
        (Normalized, "client", r"statistics='client' is for BatchNorm layers in training mode.*none.*train\(\)"),
        (Twofold, "batch", "statistics='batch' must be frozen, averaged, client or fedbn"),
        (Folded, "averaged", r"BatchNorm1d at 'norm' gets 6 rows for 1 examples: .*eval\(\)"),
        (
            lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(18, momentum=None), nn.Linear(18, 3)),
            "averaged",
            "BatchNorm1d at '1' has momentum=None.*give it a momentum",
        ),
        (
            lambda: nn.Sequential(nn.InstanceNorm1d(6, track_running_stats=True), nn.Flatten(), nn.Linear(18, 3)),
            "averaged",
            r"InstanceNorm1d at '0' keeps its own statistics.*eval\(\)",
        ),
    ],
)
def test_what_cannot_be_learned_is_refused_before_any_work(model: Any, statistics: str, message: str):
    with pytest.raises(ValueError, match=message):
        wafl.fit(seeded(model), clients_of(images()), wafl.FedAvg(), **TIMING, statistics=statistics)
