"""A GPU gives the same draws as the CPU, and the same parameters up to rounding."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

import wafl
from wafl import local, shifts
from wafl.tasks.gpu.precision import computing
from wafl.tasks.modes.one_by_one import side_by_side
from wafl.tasks.problem import Problem
from wafl.tasks.structured import FusedTask, make_task
from wafl.tasks.task import Task
from wafl.train.checkpoint.checkpoint import Checkpoint

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
    wafl.Moved(noise=0.5),
    wafl.Mixup(),
    replace(wafl.Moved([shifts.rotation(0.1), shifts.blur(0.7), shifts.occlusion(0.3)]), name="shifted"),
    replace(wafl.WAFL(gamma=2.0, local=local.sam(0.1)), name="second gradient"),
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


SMALL = partial(wafl.models.cnn, channels=(4, 8))
NARROW = partial(wafl.models.lipschitz, width=16)
LINEAR = [
    {},
    {"norm": math.inf},
    {"norm": 1},
    {"metric": "error"},
    {"label_cost": 2.0},
    {"power": 1},
    {"confidence": 0.9, "split": "test"},
]


@pytest.mark.parametrize(
    ("model", "asked"),
    [*((wafl.models.mlr, asked) for asked in LINEAR), (SMALL, {"achieved": False}), (NARROW, {"metric": "error"})],
)
def test_a_certificate_from_the_gpu_is_that_of_the_cpu(model, asked) -> None:
    some = wafl.load_dataset("digits").partition(num_clients=20, iid=True).of_clients([0, 1, 2])
    run = wafl.fit(model(some), some, wafl.FedAvg(), rounds=3, local_epochs=1)
    here, on_gpu = (wafl.certify(run, some, radii=[0.1, 1.0], device=device, **asked) for device in ("cpu", "cuda"))
    for one, other in zip(here.rows, on_gpu.rows, strict=True):
        assert other.value == pytest.approx(one.value, rel=1e-3)
        assert other.simple == pytest.approx(one.simple, rel=1e-9)


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

    def stop(moment) -> None:
        if moment.record.round == 2:
            raise KeyboardInterrupt

    whole = run(5)
    with pytest.raises(KeyboardInterrupt):
        run(5, checkpoint=Checkpoint(tmp_path), callbacks=[stop])
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
    for on_gpu, here in zip(on["cuda"], on["cpu"], strict=True):
        for name, value in here.params.items():
            torch.testing.assert_close(on_gpu.params[name], value, atol=1e-8, rtol=0)


def test_what_cannot_be_captured_is_said_and_computed_all_the_same(digits: wafl.Federation) -> None:
    class Peeking(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            outputs = super().forward(x.flatten(1))
            return outputs if bool(outputs.isfinite().all()) else outputs * 0

    with pytest.warns(wafl.SequentialWarning) as caught:
        on_gpu = wafl.fit(Peeking(64, 10), digits, wafl.FedAvg(), rounds=2, local_epochs=1, device="cuda")
    assert any("captured" in str(each.message) for each in caught)
    assert len(on_gpu.history) == 2


@pytest.mark.filterwarnings("error::wafl.SequentialWarning")
@pytest.mark.parametrize("method", [wafl.WAFL(gamma=2.0), wafl.FedPGM(epsilon=0.1)], ids=lambda method: method.name)
def test_linear_layers_within_bounds_are_captured(digits: wafl.Federation, method: wafl.Method) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))
    on = {
        device: wafl.fit(model.double(), digits, method, rounds=2, cohort=5, local_epochs=1, device=device)
        for device in ("cpu", "cuda")
    }
    for name, value in on["cpu"].params.items():
        torch.testing.assert_close(on["cuda"].params[name], value, atol=1e-8, rtol=0)


@pytest.mark.parametrize(("lanes", "classes", "examples"), [(10, 10, 64), (1, 2, 5), (3, 16, 37)])
def test_steps_in_one_kernel_end_where_steps_one_after_another_end(lanes: int, classes: int, examples: int) -> None:
    one_kernel = pytest.importorskip("wafl.objectives.ball.one_kernel")
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=generator)

    weight, base, start = draw(lanes, classes, 100), draw(lanes, classes, examples), draw(lanes, classes, examples)
    gram, expected = torch.bmm(weight, weight.mT) / 400.0, start.double().softmax(1)
    for _ in range(40):
        expected = (base.double() + gram.double() @ expected).softmax(1)
    ends = one_kernel.softmax_steps(base, gram, start.softmax(1), 40)
    torch.testing.assert_close(ends.double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("shape", [(3, 5, 8, 6), (64, 32, 32, 32), (1, 1, 2, 2)])
def test_bias_relu_and_pooling_in_one_kernel_have_the_bits_of_three(dtype, layout, shape: tuple[int, ...]) -> None:
    kernel = pytest.importorskip("wafl.tasks.gpu.pool_kernel")
    generator = torch.Generator("cuda").manual_seed(0)
    draw = torch.randn(shape, device="cuda", generator=generator).mul(4).round().div(2)  # many ties
    images, bias = draw.to(dtype).contiguous(memory_format=layout), torch.arange(shape[1], device="cuda").to(dtype) / 4
    images[0, 0, 0, 0] = math.nan
    sums = (images + bias[:, None, None]).requires_grad_()
    plain = torch.nn.functional.max_pool2d(sums.relu(), 2)
    slope = torch.randn(plain.shape, device="cuda", generator=generator).to(dtype)
    torch.testing.assert_close(kernel.forward(images, bias), plain, atol=0, rtol=0, equal_nan=True)
    slope[0, 0, 0, 0] = 0.0  # where the largest is not a number
    expected = torch.autograd.grad(plain, sums, slope)[0]
    torch.testing.assert_close(kernel.backward(images, bias, slope), expected, atol=0, rtol=0)


def test_gray_images_have_the_gradient_of_their_layers() -> None:
    pytest.importorskip("wafl.tasks.gpu.conv_kernel")
    clients = wafl.Federation.from_arrays([(torch.rand(4, 1, 28, 28), torch.arange(4))], test_fraction=0)
    task = make_task(wafl.models.cnn(clients, channels=(32, 64)), device=torch.device("cuda"))
    assert isinstance(task, FusedTask)
    params = task.initial().cuda() + 0.02 * torch.randn(3, task.num_params, device="cuda")
    x, y = torch.rand(3, 16, 1, 28, 28, device="cuda"), torch.randint(4, (3, 16), device="cuda")
    with computing("bfloat16", params.device), side_by_side():
        fused, layers = Problem(task, params).loss_and_gradient(x, y), Task.input_gradient(task, params, x, y)
    torch.testing.assert_close(fused[0], layers[0], atol=0.02, rtol=0)
    # One channel alone lost a tap at each row's second pixel; of pixels that are almost equal, either may be taken.
    for column in range(28):
        one, other = (slope[..., column].flatten() for slope in (fused[1], layers[1]))
        assert torch.nn.functional.cosine_similarity(one, other, 0) > 0.97


@pytest.mark.parametrize(
    ("depth", "channels", "side", "height", "width"),
    [(3, 32, 5, 32, 32), (2, 16, 5, 28, 28), (5, 16, 3, 2, 12), (32, 64, 5, 16, 16), (16, 128, 3, 14, 6)],
)
def test_a_convolution_that_pools_in_one_kernel_is_three_layers(depth, channels, side, height, width) -> None:
    kernel = pytest.importorskip("wafl.tasks.gpu.conv_kernel")
    generator, lanes, images = torch.Generator("cuda").manual_seed(0), 3, 7

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=generator)

    x, few = draw(lanes, images, depth, height, width), depth < 16
    x = x if few else x.bfloat16().permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    filters = (draw(lanes, channels, side, side, depth) / 8).bfloat16().permute(0, 1, 4, 2, 3)
    bias, slope = draw(lanes, channels).bfloat16(), draw(lanes, images, channels, height // 2, width // 2).bfloat16()
    pooled, choice = kernel.forward(x, filters, bias)
    gradient = kernel.backward(slope, choice, filters, x)
    assert gradient.dtype == x.dtype
    last_bit = 1 / 64  # of the largest sums: two pixels of a window may be equal but for it, and either is taken
    for lane in range(lanes):
        point = x[lane].bfloat16().double()
        sums = _rounded(torch.nn.functional.conv2d(point, filters[lane].double(), padding=side // 2))
        sums = _rounded(sums + bias[lane].double()[:, None, None])
        windows = sums.view(images, channels, height // 2, 2, width // 2, 2).transpose(3, 4).flatten(4)
        taken = choice[lane].permute(0, 3, 1, 2).long()
        some = torch.nn.functional.one_hot(taken, 5)[..., :4].to(sums)
        expected = windows.amax(-1).clamp(min=0)
        torch.testing.assert_close((some * windows).sum(-1), expected, atol=last_bit, rtol=0.01)
        torch.testing.assert_close(pooled[lane].double(), expected, atol=last_bit, rtol=0.01)
        assert (taken == windows.argmax(-1))[expected > 0].double().mean() > 0.999
        rise = (some * slope[lane].double()[..., None]).unflatten(4, (2, 2)).transpose(3, 4).reshape(sums.shape)
        back = torch.nn.functional.conv_transpose2d(rise, filters[lane].double(), padding=side // 2)
        torch.testing.assert_close(
            gradient[lane].double(), back, atol=1e-5 if few else 0.02, rtol=1e-5 if few else 0.01
        )


def _rounded(values: torch.Tensor) -> torch.Tensor:
    """As bfloat16 has them."""
    return values.bfloat16().double()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_network_that_pools_in_one_kernel_learns_the_same(digits: wafl.Federation, monkeypatch, precision) -> None:
    pytest.importorskip("wafl.tasks.gpu.pool_kernel")
    model = wafl.models.cnn(digits, channels=(4, 8))

    def params() -> dict[str, torch.Tensor]:
        options = {"rounds": 2, "cohort": 5, "local_epochs": 1, "device": "cuda", "precision": precision}
        return wafl.fit(model, digits, wafl.WAFL(gamma=2.0, steps=4), **options).params

    pooled = params()
    monkeypatch.setattr("wafl.tasks.task.with_pooling", lambda module: module)
    plain = params()
    for name, value in plain.items():
        torch.testing.assert_close(pooled[name], value, atol=1e-5, rtol=0)


def test_a_network_of_few_kernels_learns_as_its_layers_do(digits: wafl.Federation, monkeypatch) -> None:
    pytest.importorskip("wafl.tasks.gpu.conv_kernel")
    model = wafl.models.cnn(digits, channels=(16, 32))

    def train() -> wafl.Run:
        options = {"rounds": 4, "cohort": 5, "local_epochs": 1, "device": "cuda", "precision": "bfloat16"}
        return wafl.fit(model, digits, wafl.WAFL(gamma=2.0, steps=4), learning_rate=0.05, **options)

    fused, again = train(), train()
    monkeypatch.setattr("wafl.tasks.structured.fuse", lambda layers: None)
    layered = train()
    whole = torch.cat([value.flatten() for value in layered.params.values()])
    for name in layered.params:
        assert torch.equal(fused.params[name], again.params[name])
    moved = torch.cat([(fused.params[name] - value).flatten() for name, value in layered.params.items()])
    start = torch.cat([value.flatten() for value in model.state_dict().values()]).to(whole)
    assert moved.norm() < 0.05 * (whole - start).norm()
    assert fused.history[-1].loss == pytest.approx(layered.history[-1].loss, rel=0.02)
