"""What `flwr run -c` changes of an app on a node: open keys within ranges, and never which code runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict

from tests.oracles import flower_fakes as fakes
from tests.oracles.overrides import HOSTILE
from wafl.base.errors import ConfigError
from wafl.flower.app import client
from wafl.flower.node.app_code import INSTALLED, load_app
from wafl.flower.node.hello import Hello
from wafl.flower.node.refusals import check_refusal
from wafl.flower.wire.overrides import AppConfig
from wafl.flower.wire.run_config import from_run_config
from wafl.flower.wire.values import WireError, config_only

EXPERIMENT: dict[str, Any] = {
    "methods": [{"method": "FedAvg", "client_weights": "uniform"}, {"method": "WAFL", "gamma": 1.0}],
    "schedule": {"rounds": 1, "local_steps": 2, "batch_size": 32, "clip_norm": 0.5, "learning_rate": 0.2},
    "data": {"source": "mine:clients", "num_classes": 3},
    "flower": {"tasks": ["train"]},
}
MINE = "from pathlib import Path\n\nPath(__file__).with_name('ran').touch()\n\n\ndef model(clients):\n    return None\n"


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An app where Flower puts it, and a node's data."""
    fakes.virtual(monkeypatch)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    load_app.cache_clear()  # it remembers apps by their run config, and other tests here install the same one
    fakes.write(tmp_path / "data", fakes.make_clients((3, 4)))
    yield tmp_path / "app"
    sys.modules.pop("mine", None)
    load_app.cache_clear()


def ask(app: Path, run_config: dict[str, Any]) -> RecordDict:
    """What a node with its own data answers when it is greeted."""
    context = Context(1, 2, {"data": str(app.parent / "data"), **fakes.ADMITTED}, RecordDict(), run_config)
    message = Message(config_only("query", sizes=False), 5, "query.hello")
    message.metadata.__dict__["_message_id"] = "one"
    return client.client_app(message, context).content


@pytest.mark.parametrize(("key", "value"), HOSTILE, ids=lambda part: str(part)[:40])
def test_a_hostile_override_is_refused_before_anything_is_imported(app: Path, key: str, value: Any) -> None:
    config = fakes.flat(EXPERIMENT)
    fakes.install_app(app, config)
    (app / "mine.py").write_text(MINE)
    with pytest.raises(ConfigError, match="run config"):
        AppConfig(config).on_node({**config, key: value})
    with pytest.raises(WireError, match="run config"):
        check_refusal(ask(app, {**config, key: value}))
    assert not (app / "ran").exists()


def test_there_are_twenty_and_the_schema_alone_would_let_code_pass() -> None:
    assert len(HOSTILE) >= 20
    passed = 0
    for key, value in HOSTILE:
        try:
            result = from_run_config({**fakes.flat(EXPERIMENT), key: value})
        except ConfigError:
            continue
        passed += result != from_run_config(fakes.flat(EXPERIMENT))
    assert passed >= 8, "so it is the rule about overrides that refuses them"


def test_rounds_and_seeds_may_change() -> None:
    config = fakes.flat(EXPERIMENT)
    result = from_run_config(AppConfig(config).on_node({**config, "schedule.rounds": 7, "seeds": "[4, 5]"}))
    assert (result.schedule.rounds, result.seeds) == (7, [4, 5])


def test_an_app_opens_keys_within_ranges() -> None:
    config = fakes.flat(EXPERIMENT)
    ranges = {"schedule.learning_rate": [1e-4, 0.5], "methods.wafl.gamma": [1, 2]}
    app = AppConfig.of({"tool": {"wafl": {"open": ranges}, "flwr": {"app": {"config": config}}}})
    for key, value in (
        ("schedule.learning_rate", 1e-4),
        ("schedule.learning_rate", 0.5),
        ("schedule.learning_rate", "[0.1, 0.2]"),
        ("methods.wafl.gamma", 2),
    ):
        assert app.on_node({**config, key: value})[key] == value
    for key, value in (
        ("schedule.learning_rate", 0.51),
        ("schedule.learning_rate", 0.0),
        ("schedule.learning_rate", "[0.1, 1e9]"),
        ("schedule.learning_rate", "nan"),
        ("schedule.learning_rate", "[]"),
        ("schedule.learning_rate", "[[0.1]]"),
        ("schedule.learning_rate", float("nan")),
        ("schedule.learning_rate", True),
        ("schedule.learning_rate", ""),
        ("methods.wafl.gamma", '"1"'),
    ):
        with pytest.raises(ConfigError, match="nodes take numbers in"):
            app.on_node({**config, key: value})


def test_where_nodes_hold_a_part_of_the_experiments_data_set_all_numbers_may_change() -> None:
    config = fakes.flat(EXPERIMENT)
    given = {
        "schedule.rounds": 7,
        "schedule.local_steps": "",
        "schedule.local_epochs": 2,
        "methods.wafl.gamma": "[1, 2]",
    }
    result = from_run_config(AppConfig(config).on_node({**config, **given}, own_data=False))
    assert (result.schedule.rounds, result.schedule.local_steps, result.schedule.local_epochs) == (7, None, 2)
    assert result.methods[1].model_dump()["gamma"] == [1, 2]
    with pytest.raises(ConfigError, match="is not open"):
        AppConfig(config).on_node({**config, "device": "cuda:0"}, own_data=False)


def test_what_the_server_alone_reads_never_reaches_a_nodes_experiment() -> None:
    config = fakes.flat(EXPERIMENT)
    given = {
        "folder": "os:system", "output": "/tmp", "target": "x.npz", "radii": "[1]", "name": "other",
        "flower.nodes": 9, "caps.examples": 1, "trackers.project": "os:system", "evaluation.every": 3,
    }  # fmt: skip
    assert AppConfig(config).on_node({**config, **given}) == config


def test_keys_of_an_app_of_ones_own_are_closed_until_it_opens_them() -> None:
    """Its ClientApp may read them: to name a module, say."""
    config = {"trainer": "sgd", "lr": 0.1, "methods-of": "all"}
    for given in ({"trainer": "os:system"}, {"lr": 0.5}, {"methods-of": 1}):
        with pytest.raises(ConfigError, match="is not open"):
            AppConfig(config).on_node(given)
    app = AppConfig(config, {"lr": [0.01, 0.5], "trainer": ["sgd", "adam"]})
    assert app.on_node({"lr": 0.5, "trainer": "adam"}) == {**config, "lr": 0.5, "trainer": "adam"}
    with pytest.raises(ConfigError, match="nodes take sgd or adam"):
        app.on_node({"trainer": "os:system"})


def test_an_app_opens_keys_for_the_texts_that_it_names() -> None:
    config = fakes.flat(EXPERIMENT)
    ranges = {"attack.kind": ["none", "fgsm"]}
    app = AppConfig.of({"tool": {"wafl": {"open": ranges}, "flwr": {"app": {"config": config}}}})
    assert app.on_node({"attack.kind": "none"})["attack.kind"] == "none"
    assert app.on_node({"attack.kind": '"fgsm"'})["attack.kind"] == '"fgsm"', "as the experiment reads it"
    for given in ({"attack.kind": "os:system"}, {"attack.kind": "apgd"}, {"attack.kind": 1}):
        with pytest.raises(ConfigError, match="nodes take none or fgsm"):
            app.on_node(given)


@pytest.mark.parametrize(
    ("named", "why"),
    [
        (["schedule.*", "methods.*"], r"must be a table with the range of each key: .*schedule\.learning_rate"),
        ("attack", "must be a table"),
        ({"schedule.learning_rat": [0, 1]}, "schedule.learning_rat in open .* is not a key of this app"),
        ({"schedule": {"learning_rate": [0, 1]}}, "schedule in open .* is not a key of this app"),
        ({"schedule.learning_rate": [1, 0]}, r"must be \[low, high\], or a list of texts"),
        ({"schedule.learning_rate": [0, 1, 2]}, "must be"),
        ({"schedule.learning_rate": [True, False]}, "must be"),
        ({"schedule.learning_rate": []}, "must be"),
        ({"schedule.learning_rate": 0.5}, "must be"),
        ({"attack.kind": ["none", 1]}, "must be"),
    ],
)
def test_the_old_form_and_other_ranges_show_the_right_one(named: Any, why: str) -> None:
    config = {"schedule.learning_rate": 0.1, "attack.kind": "pgd"}
    with pytest.raises(ConfigError, match=why):
        AppConfig.of({"tool": {"wafl": {"open": named}, "flwr": {"app": {"config": config}}}})


@pytest.mark.parametrize("kind", ["yaml:unsafe_load", "shutil:rmtree", "elsewhere:model"])
def test_the_app_itself_names_no_function_outside_it(app: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = fakes.flat({**EXPERIMENT, "model": {"kind": kind}})
    fakes.install_app(app, config)
    with pytest.raises(WireError, match=f"{kind} is not in the app"):
        check_refusal(ask(app, config))
    monkeypatch.setenv(INSTALLED, "1")  # the node's own operator allows it, as a simulation does
    assert Hello.decode(ask(app, config), False).names == ("c00", "c01")


def test_the_apps_own_module_runs_from_its_own_bytes(app: Path) -> None:
    config = fakes.flat({**EXPERIMENT, "model": {"kind": "mine:model"}})
    fakes.install_app(app, config)
    (app / "mine.py").write_text(MINE)
    assert Hello.decode(ask(app, config), False).names == ("c00", "c01")
    assert (app / "ran").exists()
    assert sys.modules["mine"].__file__ == str(app / "mine.py")


def test_without_its_app_a_node_does_nothing(app: Path) -> None:
    config = fakes.flat({**EXPERIMENT, "seeds": [json.loads("3")]})
    with pytest.raises(WireError, match=r"\(setup\)$"):
        check_refusal(ask(app, config))
