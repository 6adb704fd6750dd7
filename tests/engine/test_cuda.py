"""A GPU gives the same draws as the CPU, and the same parameters up to rounding."""

from __future__ import annotations

import math

import pytest
import torch

import wafl
from wafl.engine.checkpoint import Checkpoint

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

METHODS = [
    wafl.FedAvg(),
    wafl.WAFL(gamma=2.0),
    wafl.WAFL(gamma=20.0, norm=math.inf, restarts=1),
    wafl.WAFL(gamma=2.0, label_cost=5.0),
    wafl.WAFL(radius=0.5),
    wafl.FedPGM(random_start=True),
    wafl.FedFGSM(),
    wafl.FedRobust(),
    wafl.DRFA(),
]


@pytest.fixture(scope="module")
def digits() -> wafl.Federation:
    return wafl.load_dataset("digits").partition(num_clients=20, labels_per_client=3, seed=0)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("kind", ["mlr", "cnn"])
def test_training_on_the_gpu_gives_the_draws_and_parameters_of_the_cpu(
    digits: wafl.Federation, method: wafl.Method, kind: str
) -> None:
    model = wafl.models.mlr(digits) if kind == "mlr" else wafl.models.cnn(digits, channels=(4, 8))
    model = model.double()
    on = {
        device: wafl.fit(model, digits, method, rounds=3, cohort=10, local_epochs=1, learning_rate=0.1, device=device)
        for device in ("cpu", "cuda")
    }
    assert [record.cohort for record in on["cpu"].history] == [record.cohort for record in on["cuda"].history]
    for name, value in on["cpu"].params.items():
        torch.testing.assert_close(on["cuda"].params[name], value, atol=1e-8, rtol=0)


def test_a_run_from_the_gpu_is_tested_and_saved_on_the_cpu(digits: wafl.Federation, tmp_path) -> None:
    run = wafl.fit(wafl.models.mlr(digits), digits, wafl.WAFL(), rounds=2, local_epochs=1, device="cuda")
    score = wafl.evaluate(wafl.load_run(run.save(tmp_path)), digits, attack=wafl.PGD(epsilon=0.1))
    assert score.accuracy is not None


def test_float32_convolutions_on_the_gpu_are_not_rounded_to_tf32(digits: wafl.Federation) -> None:
    before = torch.backends.cudnn.allow_tf32
    model = wafl.models.cnn(digits, channels=(4, 8))
    on = {
        device: wafl.fit(model, digits, wafl.FedAvg(), rounds=3, cohort=10, local_epochs=1, device=device)
        for device in ("cpu", "cuda")
    }
    for name, value in on["cpu"].params.items():
        torch.testing.assert_close(on["cuda"].params[name], value, atol=1e-5, rtol=0)
    assert torch.backends.cudnn.allow_tf32 == before


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_a_resumed_run_has_the_bits_of_one_that_went_through(digits, tmp_path, precision: str) -> None:
    model = wafl.models.cnn(digits, channels=(4, 8))

    def run(rounds: int, **more) -> wafl.Run:
        options = {"cohort": 5, "local_epochs": 1, "device": "cuda", "precision": precision}
        return wafl.fit(model, digits, wafl.WAFL(gamma=2.0, steps=4), rounds=rounds, **options, **more)

    def stop(_place: int, record, _state) -> None:
        if record.round == 2:
            raise KeyboardInterrupt

    whole = run(5)
    with pytest.raises(KeyboardInterrupt):
        run(5, checkpoint=Checkpoint(tmp_path), on_round=stop)
    resumed = run(5, checkpoint=Checkpoint(tmp_path))
    assert all(torch.equal(value, resumed.params[name]) for name, value in whole.params.items())


def test_clients_of_very_different_sizes_are_captured_and_end_where_the_cpu_ends() -> None:
    generator = torch.Generator().manual_seed(0)
    pairs = [
        (torch.randn(size, 5, generator=generator), torch.arange(size) % 3) for size in (300, 200, 130, 70, 40, 17, 6)
    ]
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Dropout(0.3), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    options = {"rounds": 3, "local_epochs": 2, "batch_size": 16, "momentum": 0.5, "learning_rate": 0.1}
    on = {
        device: wafl.fit(model.double(), clients, wafl.WAFL(gamma=5.0), device=device, **options)
        for device in ("cpu", "cuda")
    }
    for name, value in on["cpu"].params.items():
        torch.testing.assert_close(on["cuda"].params[name], value, atol=1e-8, rtol=0)


def test_a_sweep_over_clients_of_very_different_sizes_ends_where_the_cpu_ends() -> None:
    generator = torch.Generator().manual_seed(0)
    pairs = [
        (torch.randn(size, 5, generator=generator).double(), torch.arange(size) % 3)
        for size in (90, 84, 75, 66, 61, 50, 44, 40, 33, 28, 20, 16)
    ]
    clients, model = wafl.Federation.from_arrays(pairs, test_fraction=0), torch.nn.Linear(5, 3).double()
    options = {"rounds": 3, "local_epochs": 2, "batch_size": 8, "learning_rate": 0.1}
    on = {
        device: wafl.sweep(model, clients, wafl.WAFL(), {"gamma": [1.0, 2.0, 4.0, 8.0]}, device=device, **options)
        for device in ("cpu", "cuda")
    }
    for there, here in zip(on["cuda"], on["cpu"], strict=True):
        for name, value in here.params.items():
            torch.testing.assert_close(there.params[name], value, atol=1e-8, rtol=0)


def test_what_cannot_be_captured_is_said_and_computed_all_the_same(digits: wafl.Federation) -> None:
    class Peeking(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            outputs = super().forward(x.flatten(1))
            return outputs if bool(outputs.isfinite().all()) else outputs * 0

    with pytest.warns(wafl.SequentialWarning) as said:
        on_gpu = wafl.fit(Peeking(64, 10), digits, wafl.FedAvg(), rounds=2, local_epochs=1, device="cuda")
    assert any("captured" in str(each.message) for each in said)
    assert len(on_gpu.history) == 2


@pytest.mark.parametrize(("lanes", "classes", "examples"), [(10, 10, 64), (1, 2, 5), (3, 16, 37)])
def test_steps_in_one_kernel_end_where_steps_one_after_another_end(lanes: int, classes: int, examples: int) -> None:
    one_kernel = pytest.importorskip("wafl.adversaries.one_kernel")
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=generator)

    weight, base, start = draw(lanes, classes, 100), draw(lanes, classes, examples), draw(lanes, classes, examples)
    gram, expected = torch.bmm(weight, weight.mT) / 400.0, start.double().softmax(1)
    for _ in range(40):
        expected = (base.double() + gram.double() @ expected).softmax(1)
    ends = one_kernel.softmax_steps(base, gram, start.softmax(1), 40)
    torch.testing.assert_close(ends.double(), expected, atol=1e-5, rtol=0)
