"""A saved run comes back exactly, and a damaged one is refused."""

import json
import math
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import wafl
from wafl.base.files import sealed, unsealed


def classes(shape: tuple[int, ...] = (4,)) -> wafl.Federation:
    rng = np.random.default_rng(0)
    pairs = [(rng.random((n, *shape)), np.arange(n) % 3) for n in (5, 9, 7)]
    return wafl.Federation.from_arrays(pairs, bounds=(0.0, 1.0), unit="pixels")


def targets(*shape: int) -> wafl.Federation:
    rng = np.random.default_rng(1)
    return wafl.Federation.from_arrays((rng.random((n, 4)), rng.random((n, *shape))) for n in (5, 9, 7))


def absolute_error(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (outputs[:, 0] - y).abs()


def train(clients: wafl.Federation, model: nn.Module | None = None, method=None, **options) -> wafl.Run:
    options = {"rounds": 2, "local_steps": 2, "learning_rate": 0.1, **options}
    return wafl.fit(model or wafl.models.mlr(clients), clients, method or wafl.WAFL(gamma=1.0), **options)


@pytest.fixture(scope="module")
def run() -> wafl.Run:
    return train(classes())


def assert_same(loaded: wafl.Run, run: wafl.Run, x: torch.Tensor) -> None:
    assert loaded.params.keys() == run.params.keys()
    for name, value in run.params.items():
        assert torch.equal(loaded.params[name], value)
        assert loaded.params[name].dtype == value.dtype
    assert list(loaded.history) == list(run.history)
    assert torch.equal(loaded.client_weights, run.client_weights)
    assert loaded.settings == run.settings
    assert list(loaded.layout.shapes.items()) == list(run.layout.shapes.items())
    assert (loaded.method, loaded.num_classes, loaded.loss) == (run.method, run.num_classes, run.loss)
    assert torch.equal(loaded.predict(x), run.predict(x))
    assert torch.equal(loaded.outputs(x), run.outputs(x))


def partly_frozen(clients: wafl.Federation) -> nn.Module:
    model = wafl.models.cnn(clients, channels=(2, 3), seed=5)
    model[0].requires_grad_(False)
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: (classes(), None, {}),
        lambda: (classes(), None, {"method": wafl.DRFA(weights_step=lambda t: 0.1), "cohort": 2}),
        lambda: (classes(), None, {"method": wafl.WAFL(radius=0.1, norm=math.inf, bounds=(0.0, 1.0))}),
        lambda: (classes(), None, {"method": wafl.FedRobust(), "learning_rate": lambda t: 0.1 / (1 + t)}),
        lambda: (c := classes(), wafl.models.mlr(c).double(), {"seed": 2**32 - 1}),
        lambda: (c := classes((1, 4, 4)), wafl.models.cnn(c, channels=(2, 3)), {"method": wafl.FedAvg()}),
        lambda: (c := classes((1, 4, 4)), partly_frozen(c), {"method": wafl.FedAvg()}),
        lambda: (targets(), None, {"loss": "squared_error"}),
        lambda: (targets(2), None, {"loss": "squared_error", "method": wafl.FedAvg()}),
        lambda: (classes(), None, {"client_weights": wafl.weights.fixed([1, 2, 4])}),
    ],
    ids=["mlr", "drfa", "radius", "fedrobust", "float64", "cnn", "frozen", "regression", "targets", "fixed"],
)
def test_a_saved_run_loads_exactly_as_it_was(make, tmp_path):
    clients, model, options = make()
    run = train(clients, model, **options)
    assert run.save(tmp_path / "deep" / "run") == tmp_path / "deep" / "run"
    assert_same(wafl.load_run(tmp_path / "deep" / "run"), run, clients.train.x)


def test_the_settings_of_a_run_are_those_of_its_training_as_plain_values(run):
    assert run.settings["method"]["objective"]["gamma"] == 1.0
    assert run.settings["method"]["objective"]["label_cost"] == "inf"
    assert run.settings["schedule"]["learning_rate"] == 0.1
    assert (run.settings["unit"], run.settings["bounds"]) == ("pixels", [0.0, 1.0])
    assert json.loads(json.dumps(run.settings, allow_nan=False)) == run.settings


def test_predictions_are_the_largest_outputs_or_the_outputs_of_a_regression():
    clients = classes()
    run = train(clients)
    logits = clients.test.x.float().numpy() @ run.params["1.weight"].numpy().T + run.params["1.bias"].numpy()
    np.testing.assert_allclose(run.outputs(clients.test.x.numpy()).numpy(), logits, rtol=1e-5)
    assert run.predict(clients.test.x.tolist()).tolist() == logits.argmax(1).tolist()
    regression = train(targets(), method=wafl.FedAvg(), loss="squared_error")
    assert torch.equal(regression.predict(clients.test.x), regression.outputs(clients.test.x))


def test_a_run_with_your_own_model_needs_the_model_to_load(tmp_path):
    clients = classes()
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    run = train(clients, model, wafl.FedAvg())
    run.save(tmp_path)
    with pytest.raises(ValueError, match=r"model that wafl did not build: pass it as load_run\(path, model=...\)"):
        wafl.load_run(tmp_path)
    fresh = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    assert_same(wafl.load_run(tmp_path, model=fresh), run, clients.train.x.float())
    assert not torch.equal(fresh[0].weight, run.params["0.weight"]), "the given module stays as it was"


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)),
        nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Identity(), nn.Linear(5, 3)),
        nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Linear(3, 3)),
    ],
    ids=["width", "names", "more layers"],
)
def test_a_model_that_does_not_fit_is_refused(model, tmp_path):
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    train(classes(), module, wafl.FedAvg()).save(tmp_path)
    with pytest.raises(ValueError, match="parameter"):
        wafl.load_run(tmp_path, model=model)


def test_a_run_with_your_own_loss_needs_the_loss_to_load(tmp_path):
    clients = targets()
    run = train(clients, loss=absolute_error, method=wafl.FedAvg())
    run.save(tmp_path)
    with pytest.raises(ValueError, match=r"your own loss: pass it as load_run\(path, loss=...\)"):
        wafl.load_run(tmp_path)
    loaded = wafl.load_run(tmp_path, loss=absolute_error)
    assert_same(loaded, run, clients.train.x)
    assert wafl.evaluate(loaded, clients).loss == wafl.evaluate(run, clients).loss


def test_a_folder_that_does_not_exist_is_not_a_saved_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere is not a saved run"):
        wafl.load_run(tmp_path / "nowhere")


def test_the_error_for_a_folder_of_runs_names_a_run(run, tmp_path):
    run.save(tmp_path / "study" / "wafl")
    with pytest.raises(FileNotFoundError, match=r"no run\.json: load one of its runs, such as .*study.wafl$"):
        wafl.load_run(tmp_path / "study")


@pytest.mark.parametrize("name", ["run.json", "params.safetensors"])
def test_a_missing_file_of_a_saved_run_is_named(run, tmp_path, name):
    run.save(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"is not a saved run: it has no {name}"):
        wafl.load_run(tmp_path)


@pytest.mark.parametrize("keep", [0, 4, 40, -1])
@pytest.mark.parametrize("name", ["run.json", "params.safetensors"])
def test_a_truncated_file_is_refused(run, tmp_path, name, keep):
    run.save(tmp_path)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:keep])
    with pytest.raises(ValueError, match="is damaged"):
        wafl.load_run(tmp_path)


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", b"[1, 2]", b"null", b'"run"'], ids=["bytes", "list", "null", "text"]
)
def test_json_that_is_not_a_run_is_refused(run, tmp_path, content):
    run.save(tmp_path)
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ValueError, match=str(tmp_path)):
        wafl.load_run(tmp_path)


@pytest.mark.parametrize("key", ["model", "history"])
def test_json_without_one_of_its_keys_is_refused(run, tmp_path, key):
    run.save(tmp_path)
    about = unsealed((tmp_path / "run.json").read_bytes())
    del about[key]
    (tmp_path / "run.json").write_bytes(sealed(about))
    with pytest.raises(ValueError, match=key):
        wafl.load_run(tmp_path)


def test_a_newer_format_asks_for_an_update(run, tmp_path):
    run.save(tmp_path)
    about = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**about, "format": 99}))
    with pytest.raises(ValueError, match="has format 99, this version reads 1: update wafl-learn"):
        wafl.load_run(tmp_path)


def test_saving_over_a_run_replaces_it_completely(tmp_path):
    clients = classes()
    train(clients, method=wafl.FedAvg(), rounds=1).save(tmp_path)
    second = train(clients, rounds=3, learning_rate=0.5)
    assert_same(wafl.load_run(second.save(tmp_path)), second, clients.train.x)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["params.safetensors", "run.json"]


def test_a_run_that_cannot_be_written_leaves_the_old_one(run, tmp_path):
    run.save(tmp_path)
    other = replace(train(classes(), rounds=3, learning_rate=0.5), settings={"what": object()})
    with pytest.raises(TypeError):
        other.save(tmp_path)
    assert_same(wafl.load_run(tmp_path), run, classes().train.x)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_crash_while_saving_never_mixes_two_runs(run, tmp_path, monkeypatch, failing):
    """What loads afterwards is the old run or the new one; an error is fine too."""
    run.save(tmp_path)
    other = train(classes(), method=wafl.FedAvg(), rounds=3, learning_rate=0.5)
    calls = []

    def full_disk(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) >= failing:
            raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space left"):
        other.save(tmp_path)
    monkeypatch.undo()
    try:
        loaded = wafl.load_run(tmp_path)
    except ValueError:
        return
    whole = run if loaded.method == run.method else other
    assert_same(loaded, whole, classes().train.x)


def test_the_history_of_a_run_has_columns_and_a_short_repr(run):
    assert run.history.column("round") == [0, 1]
    assert run.history.column("gamma") == [1.0, 1.0]
    assert run.history.column("client_weights") == [None, None]
    assert all(set(cohort) == {0, 1, 2} for cohort in run.history.column("cohort"))
    assert repr(run) == f"Run(WAFL, History(2 rounds, last loss {run.history[-1].loss:.4g}))"
