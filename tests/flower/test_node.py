"""A node by itself: its own data, what it keeps, the experiment as it arrives, and the app it comes from."""

from __future__ import annotations

import math
import os
import random
import sys
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.cli.app_cmd.publish import _collect_file_paths, _validate_files
from flwr.cli.config_utils import load_and_validate
from flwr.clientapp.mod import fixedclipping_mod
from flwr.common.config import flatten_dict, get_fused_config_from_dir, parse_config_args

import wafl
from tests.config.every_key import TABLES, Table, tried
from tests.oracles import flower_fakes as fakes
from wafl.base.errors import ConfigError, FolderError
from wafl.config.experiment import Data, Experiment
from wafl.config.read import parse_experiment
from wafl.flower.app import client
from wafl.flower.node.hello import Hello
from wafl.flower.node.keepsakes import Keepsakes, state_folder
from wafl.flower.node.refusals import check_refusal, signature
from wafl.flower.node.site import open_site, read_folder
from wafl.flower.node.work import Node
from wafl.flower.ops.app import trial_experiment, write_app
from wafl.flower.wire.run_config import OWN, from_run_config, to_run_config
from wafl.flower.wire.values import NodeQuery, WireError, config_only, decode_replies, encode_query
from wafl.parts.messages import Query
from wafl.train.trust.admission import Tolerance

INF = math.inf
DATA = Data(num_clients=5, labels_per_client=4)


# -- Its own data -----------------------------------------------------------------------------------------------


def test_a_folder_holds_one_client_per_file(tmp_path: Path) -> None:
    """In the order of their names, with exactly the numbers in the file and nothing held out."""
    clients = dict(zip("bca", fakes.make_clients((3, 8, 6)).values(), strict=True))
    (fakes.write(tmp_path / "data", clients) / "notes.txt").write_text("not a client")
    site = open_site({"data": str(tmp_path / "data")}, DATA)
    assert dict(site.rows) == {"a": 0, "b": 1, "c": 2}
    assert site.numbers is None
    for name, row in site.rows.items():
        for part, suffix in ((site.federation.train, ""), (site.federation.test, "_test")):
            x, y = part.of(row)
            assert np.array_equal(x.numpy(), clients[name][f"x{suffix}"])
            assert np.array_equal(y.numpy(), clients[name][f"y{suffix}"])


def test_a_label_that_only_test_examples_have_counts_as_a_class(tmp_path: Path) -> None:
    clients = fakes.make_clients((3, 4))
    clients["c01"]["y_test"][2] = 6
    assert read_folder(fakes.write(tmp_path / "data", clients)).num_classes == 7


def save(file: Path, **arrays: Any) -> None:
    np.savez(file, **arrays)


X, Y = np.random.default_rng(0).normal(size=(50, 4)), np.arange(50) % 3


def test_a_file_that_cannot_be_read_or_held_is_refused_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fakes.write(tmp_path / "data", fakes.make_clients((3,), tests=0))
    for content in (b"", b"hello", (folder / "c00.npz").read_bytes()[:-20]):
        (folder / "bad.npz").write_bytes(content)
        with pytest.raises(ConfigError, match=r"bad\.npz cannot be read"):
            read_folder(folder)
    (folder / "bad.npz").unlink()
    monkeypatch.setattr("wafl.flower.node.site.free_bytes", lambda device: 40)
    with pytest.raises(ConfigError, match=r"c00.npz cannot be read: it unpacks to more than 40 bytes"):
        read_folder(folder)


@pytest.mark.parametrize(
    ("arrays", "parts"),
    [
        ({"x": X}, ["one.npz", "holds x", "y"]),
        ({"x": X, "y": Y, "x_test": X}, ["one.npz", "x_test", "first two or all"]),
        ({"z": X}, ["one.npz", "holds none", "x, y"]),
        ({"x": X * math.nan, "y": Y}, ["NaN"]),
    ],
)
def test_a_file_with_missing_or_invalid_arrays_is_refused(
    arrays: dict[str, Any], parts: list[str], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    save(tmp_path / "data" / "one.npz", **arrays)
    with pytest.raises(ValueError, match=r".") as caught:
        open_site({"data": str(tmp_path / "data")}, DATA)
    for part in parts:
        assert part in str(caught.value)


def test_test_examples_for_only_some_clients_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    save(tmp_path / "data" / "one.npz", x=X, y=Y, x_test=X, y_test=Y)
    save(tmp_path / "data" / "two.npz", x=X, y=Y)
    with pytest.raises(ConfigError, match=r"one have x_test.*all or none"):
        read_folder(tmp_path / "data")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (True, r"data='.*data' holds no \.npz.*give each client one, with x and y"),
        (False, r"data='.*data' is not a folder: give one with a file NAME\.npz for each client"),
    ],
)
def test_a_folder_without_clients_is_refused(make: bool, reason: str, tmp_path: Path) -> None:
    if make:
        (tmp_path / "data").mkdir()
    with pytest.raises(ConfigError, match=reason):
        open_site({"data": str(tmp_path / "data")}, DATA)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_data.py").write_text(
        "import numpy as np, wafl\n"
        "def load():\n"
        "    pairs = [(np.ones((3, 2)), np.array([0, 1, 1])), (np.zeros((2, 2)), np.array([1, 0]))]\n"
        "    return wafl.Federation.from_arrays(pairs, test_fraction=0, names=['north', 'south'], unit='mm')\n"
        "def nothing():\n"
        "    return None\n"
        "def fails():\n"
        "    raise RuntimeError('no database')\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_data", raising=False)
    return "own_data"


def test_a_function_gives_the_clients(module: str) -> None:
    site = open_site({"data": f"{module}:load"}, DATA)
    assert dict(site.rows) == {"north": 0, "south": 1}
    assert site.federation.unit == "mm"


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        ("own_data:nothing", ["own_data:nothing", "NoneType", "wafl.Federation"]),
        ("own_data:missing", ["own_data:missing", "cannot be imported", "missing"]),
        (3, ["3", "a folder", "module:function"]),
    ],
)
def test_a_function_that_gives_no_clients_is_refused(data: Any, parts: list[str], module: str) -> None:
    with pytest.raises(ConfigError, match="node config") as caught:
        open_site({"data": data}, DATA)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_partitions_give_every_client_to_exactly_one_node(parts: int) -> None:
    everyone = wafl.load_dataset("digits").partition(num_clients=5, labels_per_client=4)
    sites = [open_site({"partition-id": part, "num-partitions": parts}, DATA) for part in range(parts)]
    held = sorted((site.numbers[name], name) for site in sites if site.numbers for name in site.rows)
    assert held == list(enumerate(everyone.names))
    for site in sites:
        for name, row in site.rows.items():
            assert torch.equal(site.federation.train.of(row)[0], everyone.train.of(everyone.names.index(name))[0])


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({}, ["no data", "data='FOLDER'", "module:function"]),
        ({"partition-id": 1}, ["partition-id=1", "num-partitions=None"]),
        ({"partition-id": 2, "num-partitions": 2}, ["partition-id=2", "num-partitions=2"]),
        ({"partition-id": 0.0, "num-partitions": 2}, ["partition-id=0.0"]),
        ({"partition-id": 5, "num-partitions": 6}, ["6 nodes", "5 clients", "partition 5", "fewer nodes"]),
    ],
)
def test_an_invalid_partition_is_refused(config: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        open_site(config, DATA)
    for part in parts:
        assert part in str(caught.value)


def test_an_empty_folder_name_does_not_mean_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "one.npz", x=X, y=Y)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        open_site({"data": ""}, DATA)


# -- What clients keep ------------------------------------------------------------------------------------------


def kept(value: float) -> dict[str, torch.Tensor]:
    """What two parts of a method keep."""
    return {"objective": torch.full((3,), value, dtype=torch.float64), "local": torch.full((2, 2), -float(value))}


def assert_kept(result: Mapping[str, torch.Tensor] | None, value: float | None) -> None:
    if result is None or value is None:
        assert result is value
        return
    assert result.keys() == kept(value).keys()
    for part, tensor in kept(value).items():
        assert torch.equal(result[part], tensor)
        assert result[part].dtype == tensor.dtype


def test_a_round_begins_with_what_was_kept_before_it(tmp_path: Path) -> None:
    keepsakes = Keepsakes(tmp_path, "training", "fedrobust")
    assert keepsakes.before(0, "a", 5) is None
    for number in (0, 3, 4):
        keepsakes.keep(0, "a", number, kept(number), saved=-1)
    for number, expected in ((0, None), (1, 0.0), (3, 0.0), (4, 3.0), (5, 4.0), (10**12, 4.0)):
        assert_kept(Keepsakes(tmp_path, "training", "fedrobust").before(0, "a", number), expected)
    keepsakes.keep(0, "a", 3, kept(1 / 3), saved=-1)
    assert_kept(keepsakes.before(0, "a", 4), 1 / 3)


@pytest.mark.parametrize(
    "other",
    [
        ("other", "fedrobust", 0, "a"),
        ("training", "b", 0, "a"),
        ("training", "fedrobust", 1, "a"),
        ("training", "fedrobust", 0, "A"),
        ("training", "fedrobust", 0, "a-0"),
    ],
)
def test_trainings_methods_runs_and_clients_do_not_share_what_they_keep(
    other: tuple[str, str, int, str], tmp_path: Path
) -> None:
    """Whatever their names are."""
    Keepsakes(tmp_path, "training", "fedrobust").keep(0, "a", 1, kept(1), saved=-1)
    training, entry, run, name = other
    assert Keepsakes(tmp_path, training, entry).before(run, name, 9) is None


def test_what_a_resume_may_need_is_never_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server goes back as far as it may, again and again; clients take part in only some rounds."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    draws = random.Random(0)
    for trial in range(20):
        keepsakes, horizon = Keepsakes(tmp_path, str(trial), "e"), draws.choice([2, 6])
        present = sorted(draws.sample(range(30), draws.choice([5, 15, 30])))
        furthest, index = 0, 0
        while index < len(present):
            number = present[index]
            assert_kept(keepsakes.before(0, "a", number), present[index - 1] if index else None)
            keepsakes.keep(0, "a", number, kept(number), saved=max(number - horizon, -1))
            furthest, index = max(furthest, number), index + 1
            if draws.random() < 0.3:
                begin = furthest - horizon + 1
                index = next(i for i, each in enumerate(present) if each >= begin)


def test_what_was_kept_in_undone_rounds_is_forgotten(tmp_path: Path) -> None:
    """The server goes back to round 2, and this time the client misses round 3."""
    keepsakes = Keepsakes(tmp_path, "t", "e")
    for number in (1, 2, 3):
        keepsakes.keep(0, "a", number, kept(number), saved=-1)
    keepsakes.keep(0, "a", 2, kept(20), saved=-1)
    assert_kept(keepsakes.before(0, "a", 4), 20.0)


def test_old_keepsakes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    keepsakes = Keepsakes(tmp_path, "t", "e")
    for number in range(50):
        keepsakes.keep(0, "a", number, kept(number), saved=number - 2)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 3


def test_the_nodes_own_configuration_decides_where_state_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("WAFL_STATE", "FLWR_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert state_folder({}) == Path.home() / ".flwr" / "wafl"
    monkeypatch.setenv("FLWR_HOME", "/x")
    assert state_folder({}) == Path("/x/wafl")
    monkeypatch.setenv("WAFL_STATE", "/y")
    assert state_folder({}) == Path("/y")
    assert state_folder({"state": "/z"}) == Path("/z")


# -- The experiment as a run config -----------------------------------------------------------------------------

METHODS: list[dict[str, Any]] = [
    {"method": "FedAvg", "rounds": 3, "cohort": [1, 2], "learning_rate": [0.1, 1e-9], "momentum": 0, "name": "FedAvg"},
    {"method": "WAFL", "gamma": [0.5, 2], "norm": ["inf", 2, 1.0], "power": [1, 2], "label_cost": [0.1, INF]},
    {"method": "WAFL", "radius": 1e-30, "steps": [1, 2], "tolerance": [0.0], "restarts": 0, "name": "r"},
    {"method": "SCAFFOLD", "server": {"kind": "momentum"}, "client_weights": [1.0, 2.0], "name": "scaffold.1"},
    {"method": "WAFL", "server": {"kind": "a.b:c", "options": {"d": "[e", "f": [1, 2]}}, "name": "a.b-c"},
    {"method": "a:mine", "name": "told", "clip_norm": 0.5, "options": {
        "text": "x", "like_a_list": "[1, 2]", "like_half_a_list": "[", "like_a_table": "{a = 1}", "quoted": '"x" \\',
        "empty": "", "lines": 'a\n"b"\t[c]', "whole": 3, "real": 3.0, "large": 1e300, "endless": INF, "yes": True,
        "swept": [0.5, 1], "words": ["[", "b c"], "nothing": [], "deep": [[1, 2], [], ["x"]],
        "tables": [{"a.b": 1, "c": {}}, {}], "table": {"a.b": {"c d": [1], "": 2}, "e": "[f"}, "no_table": {},
    }},
]  # fmt: skip
SECTIONS = {"attack": {"norm": "inf"}, "evaluation": {"attacked": [0, 0.5, 1], "every": 3}}


def meaning(experiment: Experiment) -> dict[str, Any]:
    """All that matters on a grid, with methods by the names of their results."""
    content = experiment.model_dump(exclude={"engine", "methods", "tolerance", "caps"})
    content["tolerance"] = (experiment.tolerance or Tolerance()).settled(remote=True)
    content["caps"] = experiment.caps.settled(remote=True)
    content["methods"] = {method.label: method.model_dump(exclude={"name"}) for method in experiment.methods}
    return content


def received(experiment: Experiment, seed: int = 0) -> Experiment:
    """As it arrives on a node: through a TOML file and Flower's flattening, in any order."""
    import tomlkit

    tables = tomllib.loads(tomlkit.dumps(to_run_config(experiment)))
    items = list(flatten_dict(tables).items())
    random.Random(seed).shuffle(items)
    return from_run_config(dict(items))


@pytest.mark.parametrize("seed", [0, 1])
def test_an_experiment_arrives_unchanged(seed: int) -> None:
    experiment = parse_experiment({"methods": METHODS, **SECTIONS}, "here")
    result = received(experiment, seed)
    assert meaning(result) == meaning(experiment)
    assert result.engine == "flower"


def accepted(table: Table, key: str) -> list[Experiment]:
    """An experiment with the first of the values to try that the reader accepts there."""
    for value in tried(table.keys[key]):
        with suppress(ConfigError):
            return [parse_experiment(table.holding(**{key: value}), "here")]
    return []


def test_every_key_of_a_file_arrives_unchanged() -> None:
    for table in TABLES.values():
        for key in table.keys:
            for experiment in accepted(table, key):
                assert meaning(received(experiment)) == meaning(experiment), key


def test_an_option_whose_name_cannot_be_an_argument_is_refused() -> None:
    """With a dot, it would arrive as a table."""
    for name in ("a.b", "", "a b", "1"):
        for method in (
            {"method": "a:mine", "options": {name: 1}},
            {"method": "AFL", "local": {"kind": "a:b", "options": {name: 1}}},
        ):
            experiment = parse_experiment({"methods": [method]}, "here")
            with pytest.raises(ConfigError, match="is not an argument's name"):
                to_run_config(experiment)


def test_methods_whose_names_differ_only_in_dots_stay_apart() -> None:
    names = ["a.b", "a-b-2", "a-b", "a.b-2", "a-b-1", "a-b.1"]
    methods = [{"method": "WAFL", "name": name, "gamma": 1.0 + index} for index, name in enumerate(names)]
    experiment = parse_experiment({"methods": methods}, "here")
    assert meaning(received(experiment)) == meaning(experiment)


@pytest.mark.parametrize(
    ("section", "name"),
    [("trackers", "project"), ("data", "dataset"), ("data", "data_dir"), ("early_stopping", "metric")],
)
@pytest.mark.parametrize("text", ["", "[not a list", "[1, 2]", '"', "{", "{a = 1}", "a=b # c", "true", "3"])
def test_any_text_arrives_unchanged(section: str, name: str, text: str) -> None:
    experiment = parse_experiment({"methods": [{"method": "AFL"}], section: {name: text}}, "here")
    assert meaning(received(experiment)) == meaning(experiment)


def test_values_can_be_set_when_a_flower_run_is_started(tmp_path: Path) -> None:
    """With the functions that ``flwr run --run-config`` uses."""
    experiment = parse_experiment({"methods": METHODS[:3], "schedule": {"rounds": 5}}, "here")
    write_app(tmp_path / "app", experiment)
    changes = parse_config_args(
        ["schedule.rounds=7 schedule.cohort='[2, 3]' methods.wafl.norm=inf methods.r.radius=0.5 seeds='[4]'"]
    )
    result = from_run_config(get_fused_config_from_dir(tmp_path / "app", changes))
    assert result.schedule.rounds == 7
    assert result.schedule.cohort == [2, 3]
    assert result.seeds == [4]
    by_name = {method.label: method for method in result.methods}
    assert by_name["wafl"].norm == INF  # type: ignore[union-attr]
    assert by_name["r"].radius == 0.5  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"seeds": "[0, 1"}, "seeds = '[0, 1' is not a list"),
        ({"name": '"x'}, "is not a text in quotes"),
        ({"schedule.rounds": 0}, "schedule.rounds = 0"),
        ({"schedule.round": 3}, "did you mean rounds"),
        ({"name": "x", "name.y": 3}, "is a value and not a table"),
        ({"methods.wafl": "WAFL"}, "methods must be tables"),
    ],
)
def test_an_invalid_run_config_is_refused_with_its_key(values: dict[str, Any], part: str) -> None:
    usual = {} if "methods.wafl" in values else {"methods.wafl.method": "WAFL"}
    with pytest.raises(ConfigError, match="run config") as caught:
        from_run_config({**usual, **values})
    assert part in str(caught.value)


def test_nodes_on_other_machines_are_believed_less_than_those_of_a_simulation() -> None:
    for engine, expected in (("flower", (1, "double", 2.5)), ("flower-sim", (1000, 1.0, INF))):
        result = to_run_config(parse_experiment({"engine": engine, "methods": [{"method": "FedAvg"}]}, "here"))
        caps = result["caps"]
        assert (caps["clients_per_node"], caps["client_share"], result["tolerance"]["clip"]) == expected


def test_the_servers_own_keys_are_not_part_of_the_experiment() -> None:
    experiment = parse_experiment({"methods": [{"method": "AFL"}]}, "here")
    values = flatten_dict(to_run_config(experiment))
    assert OWN.keys() <= values.keys()
    assert not OWN.keys() & Experiment.model_fields.keys()
    assert meaning(from_run_config({**values, "folder": "/x", "target": "y", "norm": INF})) == meaning(experiment)


# -- The app ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["experiment", "A-1_b.c", "7", "7.x", "Wärme_2", "x--y"])
def test_flower_accepts_the_app(name: str, tmp_path: Path) -> None:
    experiment = parse_experiment({"methods": METHODS, "name": name, **SECTIONS}, "here")
    files = write_app(tmp_path / "app", experiment)
    assert [file.name for file in files] == ["pyproject.toml", "LICENSE", "README.md"]
    with catch_warnings():
        simplefilter("ignore", DeprecationWarning)  # of pathspec, which flwr calls by an old name
        published = _collect_file_paths(tmp_path / "app")  # what `flwr app publish` would send to Flower's hub
    _validate_files(published)
    assert {file.name for file in published} == {"pyproject.toml", "LICENSE", "README.md"}
    content, warnings = load_and_validate(files[0], check_module=True)
    assert warnings == []
    assert meaning(from_run_config(get_fused_config_from_dir(tmp_path / "app", {}))) == meaning(experiment)
    assert content["project"]["name"].replace("-", "").isalnum()
    assert content["project"]["name"][0].isalpha()


def test_writing_an_app_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    for name in ("full", "file"):
        with pytest.raises(FolderError, match=rf"{name} exists already.*choose another"):
            write_app(tmp_path / name, trial_experiment())
    assert os.listdir(tmp_path / "full") == ["mine.txt"]
    assert (tmp_path / "file").read_text() == "mine"
    write_app(tmp_path / "empty", trial_experiment())


def test_modules_of_models_methods_and_parts_are_copied_into_the_app_and_those_of_data_for_simulations(
    tmp_path: Path,
) -> None:
    modules = ("mine", "rules", "servers", "steps", "data", "nets")
    for name in modules:
        (tmp_path / f"{name}.py").write_text(f"# {name}")
    methods = [
        {"method": "mine:one"},
        {"method": "mine:two", "options": {"x": 1}},
        {"method": "WAFL", "server": {"kind": "servers:s"}, "local": {"kind": "steps:l"}, "client_weights": "rules:w"},
    ]
    described = {"methods": methods, "model": {"kind": "nets:build"}, "data": {"source": "data:load"}}
    experiment = parse_experiment(described, "here")
    files = write_app(tmp_path / "app", experiment, tmp_path)
    copied = {file.name for file in files}
    assert copied - {"LICENSE", "README.md"} == {
        "mine.py", "nets.py", "pyproject.toml", "rules.py", "servers.py", "steps.py",
    }  # fmt: skip
    load_and_validate(files[0], check_module=True)
    simulated = write_app(tmp_path / "simulated", experiment, tmp_path, with_data=True)
    assert "data.py" in {file.name for file in simulated}


# -- The ClientApp ----------------------------------------------------------------------------------------------


@pytest.fixture
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.virtual(monkeypatch)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))


def ask(kind: str, content: RecordDict, node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> RecordDict:
    context = Context(1, 2, dict(node_config), RecordDict(), dict(run_config))
    message = Message(content, 5, kind)
    message.metadata.__dict__["_message_id"] = "one"
    return client.client_app(message, context).content


@pytest.mark.usefixtures("identity")
def test_the_client_app_answers_with_its_nodes_own_clients(tmp_path: Path) -> None:
    config = fakes.flat({"methods": [{"method": "AFL"}], "schedule": {"rounds": 1}})
    fakes.install_app(tmp_path / "app", config)
    for index, names in enumerate((["c00", "c01"], ["c02"])):
        clients = fakes.make_clients((3, 4, 5))
        fakes.write(tmp_path / f"{index}", {name: clients[name] for name in names})
    for index, names in ((0, ("c00", "c01")), (1, ("c02",)), (0, ("c00", "c01"))):
        reply = ask(
            "query.hello",
            config_only("query", sizes=False),
            {"data": str(tmp_path / f"{index}"), **fakes.ADMITTED},
            config,
        )
        assert Hello.decode(reply, False).names == names


@pytest.mark.usefixtures("identity")
def test_flowers_clipping_mod_works_around_our_client_app(tmp_path: Path) -> None:
    """With one client per node, the update that leaves the node has the length that the mod allows."""
    clients = fakes.make_clients((3,))
    folder = fakes.write(tmp_path / "data", clients)
    experiment = {"methods": [{"method": "FedAvg"}], "schedule": {"rounds": 1, "local_steps": 2, "learning_rate": 5.0}}
    config = {"data": str(folder), "state": str(tmp_path / "state"), **fakes.ADMITTED}
    start, weight = torch.linspace(-1, 1, 15), torch.ones(1, dtype=torch.float64)
    scalars = {"learning_rate": 5.0, "momentum": 0.0, "weight_decay": 0.0}
    query = NodeQuery("fedavg", (0,), (Query("train", 0, 0, (0,), weight, start, scalars),), {0: "c00"}, 3, "training")
    updates: list[torch.Tensor] = []
    fakes.install_app(tmp_path / "app", fakes.flat(experiment))
    for app in (client.client_app, client.make_client_app([fixedclipping_mod])):
        content = encode_query(query)
        content["query"]["clipping_norm"] = 0.25
        context = Context(1, 2, config, RecordDict(), fakes.flat(experiment))
        message = Message(fakes.carried(content), 5, "train")
        message.metadata.__dict__["_message_id"] = "one"
        ((reply,),) = decode_replies(fakes.carried(app(message, context).content), query)
        updates.append(reply.vectors["params"] - start)
    assert float(updates[0].norm()) > 0.5
    torch.testing.assert_close(updates[1], updates[0] * 0.25 / updates[0].norm(), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("identity")
def test_a_node_without_data_tells_its_own_log_why_and_the_server_only_that(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = fakes.flat({"methods": [{"method": "AFL"}], "schedule": {"rounds": 1}})
    fakes.install_app(tmp_path / "app", experiment)
    for config, words in (({"data": str(tmp_path / "nowhere")}, "is not a folder"), ({}, "no data")):
        reply = ask("query.hello", config_only("query", sizes=False), config, experiment)
        with pytest.raises(
            WireError, match=r"^it cannot read the experiment or open its data; its own log .* \(setup\)$"
        ):
            check_refusal(reply)
        assert words in caplog.text
        assert words not in str(dict(reply["refused"]))
        assert signature(reply) == ""
        caplog.clear()
        assert (
            signature(ask("query.hello", config_only("query", sizes=False), {**config, "name": "north"}, experiment))
            == "north"
        )


# -- What it refuses --------------------------------------------------------------------------------------------


def test_a_node_refuses_a_model_with_other_outputs_than_the_app_declares_or_its_labels_have(tmp_path: Path) -> None:
    folder = fakes.write(tmp_path / "data", fakes.make_clients((3, 4)))
    experiment = {"methods": [{"method": "AFL"}], "schedule": {"rounds": 1}}
    data = {"data": str(folder), **fakes.ADMITTED}
    for outputs in (2, 5):
        with pytest.raises(WireError, match=rf"has 3 classes or targets, the model {outputs} outputs.*num_classes"):
            Node.of(data, fakes.flat(experiment)).model(outputs)
    declared = Node.of(data, fakes.flat({**experiment, "data": {"num_classes": 5}}))
    assert [tuple(part.shape) for part in declared.model(5).parameters()] == [(5, 4), (5,)]


def test_a_node_computes_on_the_device_that_its_own_configuration_names(tmp_path: Path) -> None:
    fakes.write(tmp_path / "data", fakes.make_clients((3, 4)))
    experiment = fakes.flat({"methods": [{"method": "AFL"}], "schedule": {"rounds": 1}, "device": "cuda:7"})
    data = {"data": str(tmp_path / "data"), **fakes.ADMITTED}
    assert Node.of(data, experiment).experiment.device == "cuda:7"
    node = Node.of({**data, "device": "cpu"}, experiment)
    assert node.task(3)[1].device.type == "cpu"
    for device in ("gpu", "cuda:", "cpu\n", 0):
        with pytest.raises(ConfigError, match=r"node config: device=.* must be 'cpu', 'cuda'"):
            Node.of({**data, "device": device}, experiment)
