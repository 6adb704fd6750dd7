"""A GPU gives the same draws as the CPU, and the same parameters up to rounding."""

from __future__ import annotations

import math

import pytest
import torch

import wafl

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
