"""Promises about the next client: issued without the sealed clients, opened only as issued, judged exactly."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from research.__main__ import main
from research.promises import phases
from research.promises.phases import confidence_for, issue_all, open_all
from research.promises.tasks import Task, apart, tasks_of
from research.promises.verdict import p_value, tightness, verdicts
from research.registration import registered
from research.significance import holm
from tests.promises.files import write_keys
from wafl.data.examples import Examples
from wafl.data.federation import Federation
from wafl.data.named.datasets import Dataset

Folders = tuple[Path, Path]


def quiet(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """The smallest run of both phases."""
    output, work = tmp_path_factory.mktemp("output"), tmp_path_factory.mktemp("work")
    with pytest.raises(FileNotFoundError, match="openssl genpkey"):
        issue_all("smoke", output, work, quiet)
    for key, path in zip(write_keys(work), (work / "key.pem", output / "public.pem"), strict=True):
        key.rename(path)
    issue_all("smoke", output, work, quiet)
    open_all("smoke", output, work, quiet)
    return output, work


def test_promises_and_what_happened_are_what_numpy_says(folders: Folders) -> None:
    output, work = folders
    rows = json.loads((output / "opened.json").read_bytes())["rows"]
    (task,) = tasks_of(registered("promises")[0], "smoke")
    clients = task.clients()
    folds = task.folds(clients.num_clients)
    everyone = clients.train.joined(clients.test)
    checked = 0
    for row in rows:
        if row["statement"] not in ("loss", "error"):
            continue
        weights = torch.load(work / f"{task.name}-{row['fold']}-{row['method']}.pt", weights_only=True)
        matrix, bias = (next(v.double().numpy() for v in weights.values() if v.ndim == ndim) for ndim in (2, 1))

        def value(client: int, matrix: Any = matrix, bias: Any = bias, statement: str = row["statement"]) -> float:
            x, y = everyone.of(client)
            logits = x.double().flatten(1).numpy() @ matrix.T + bias
            if statement == "error":
                return float((logits.argmax(1) != y.numpy()).mean())
            return float(np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y.numpy()]))

        _, calibration, sealed = folds[row["fold"]]
        promised = sorted(map(value, calibration))[math.ceil((len(calibration) + 1) * 0.8) - 1]
        assert row["promised"] == pytest.approx(promised, rel=1e-6)
        assert row["happened"] == pytest.approx([value(client) for client in sealed], rel=1e-6)
        checked += 1
    assert checked == 2 * 2 * 2  # folds, methods, statements


def test_clients_lose_more_where_they_are_moved_by_an_attack(folders: Folders) -> None:
    rows = json.loads((folders[0] / "opened.json").read_bytes())["rows"]
    by_statement = {(row["fold"], row["method"], row["statement"]): row for row in rows}
    for (fold, method, statement), row in by_statement.items():
        if statement == "moved":
            still = by_statement[fold, method, "loss"]
            assert all(far > near for far, near in zip(row["happened"], still["happened"], strict=True))


def test_every_client_is_sealed_once_and_never_seen_in_its_fold() -> None:
    table, _ = registered("promises")
    for task in tasks_of(table, "full"):
        for total in (17, 48, 100):
            folds = task.folds(total)
            assert sorted(client for _, _, sealed in folds for client in sealed) == list(range(total))
            for seen, calibration, sealed in folds:
                assert sorted([*seen, *calibration, *sealed]) == list(range(total))
    orders = [task.folds(100)[0] for task in tasks_of(table, "full")]
    assert all(one != other for one, other in itertools.combinations(orders, 2))


def changed(clients: Federation, which: list[int]) -> Federation:
    """Other examples, of other labels, for some clients."""

    def other(examples: Examples) -> Examples:
        raw, y = examples.raw[:].clone(), examples.y.clone()
        for client in which:
            rows = slice(*examples.offsets[client : client + 2].tolist())
            raw[rows], y[rows] = raw[rows] // 2 + 1, (y[rows] + 1) % 2
        return replace(examples, raw=raw, y=y)

    return replace(clients, train=other(clients.train), test=other(clients.test))


@pytest.mark.slow
def test_sealed_clients_change_no_byte_of_what_is_issued(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Noon(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Noon:
            return cls(2000, 1, 1, 12, tzinfo=UTC)

    table, stamp = registered("promises")
    moved = {"moved": table["statements"]["moved"]}
    monkeypatch.setattr(phases, "registered", lambda _: (table | {"methods": ["WAFL"], "statements": moved}, stamp))
    monkeypatch.setattr("wafl.theory.certificates.publish.datetime", Noon)
    everyone, folds = Task.clients, Task.folds
    monkeypatch.setattr(Task, "folds", lambda task, total: folds(task, total)[:1])

    def issue(name: str, which: int | None) -> dict[str, bytes]:
        def some(task: Task) -> Federation:
            clients = everyone(task)
            return clients if which is None else changed(clients, folds(task, clients.num_clients)[0][which])

        monkeypatch.setattr(Task, "clients", some)
        (tmp_path / name).mkdir()
        for folder, file in zip(folders, ("public.pem", "key.pem"), strict=True):
            (tmp_path / name / file).write_bytes((folder / file).read_bytes())
        issue_all("smoke", tmp_path / name, tmp_path / name, quiet)
        return {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}

    as_it_is = issue("as it is", None)
    assert len(as_it_is) > 5
    assert issue("others sealed", 2) == as_it_is
    assert issue("others calibrate", 1) != as_it_is


def test_measurements_are_standardized_by_seen_clients_alone() -> None:
    x, y = torch.rand(60, 3) * 100.0, torch.arange(60) % 2
    group = torch.arange(60) % 6
    data = Dataset("some", x, y, x[:0], y[:0], 2, None, group, group[:0], tuple("abcdef"))
    clients = data.partition(by_group=True)
    for which, same in (([4, 5], True), ([0], False)):
        before, after = (apart(each, [0, 1], [2, 3]) for each in (clients, changed(clients, which)))
        assert all(one.fingerprint() == other.fingerprint() for one, other in zip(before, after, strict=True)) == same


def test_only_what_was_issued_is_opened(folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, work = folders
    monkeypatch.setattr(Task, "clients", lambda _: pytest.fail("a sealed client was opened"))
    with pytest.raises(FileNotFoundError, match="issue promises first"):
        open_all("smoke", tmp_path, work, quiet)
    (tmp_path / "public.pem").write_bytes((output / "public.pem").read_bytes())
    whole = (output / "issued.json").read_text()
    value = next(row["value"] for row in json.loads(whole)["rows"])
    (tmp_path / "issued.json").write_text(whole.replace(str(value), str(value * 2)))
    with pytest.raises(ValueError, match="was changed"):
        open_all("smoke", tmp_path, work, quiet)
    (tmp_path / "issued.json").write_text(whole)
    with pytest.raises(ValueError, match="another registration or scale"):
        open_all("full", tmp_path, work, quiet)
    for path in work.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    one, other = sorted(work.glob("*-loss.json"))[:2]
    (tmp_path / one.name).write_bytes(other.read_bytes())
    with pytest.raises(ValueError, match="is not what was issued"):
        open_all("smoke", tmp_path, tmp_path, quiet)


def test_another_model_is_refused(folders: Folders, tmp_path: Path) -> None:
    output, work = folders
    for path in work.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    one, other = sorted(work.glob("*.pt"))[:2]
    (tmp_path / one.name).write_bytes(other.read_bytes())
    with pytest.raises(ValueError, match="is not the model that was promised about"):
        open_all("smoke", output, tmp_path, quiet)


def test_the_p_value_counts_orders_of_exchangeable_clients() -> None:
    for sealed, calibration, path in ((3, 4, 4), (4, 5, 4), (2, 6, 5)):
        orders = list(itertools.combinations(range(sealed + calibration), sealed))
        covered = Counter[int]()
        for order in orders:  # which ranks the sealed clients have
            bound = [rank for rank in range(sealed + calibration) if rank not in order][path - 1]
            covered[sum(rank <= bound for rank in order)] += 1
        for count in range(sealed + 1):
            exact = sum(covered[each] for each in range(count + 1)) / len(orders)
            assert p_value(count, sealed, calibration, path) == pytest.approx(exact, abs=1e-12)


def test_the_p_value_is_rarely_small_if_promises_are_right() -> None:
    random, small = Random(0), 0
    for _ in range(2000):
        calibration = sorted(random.random() for _ in range(19))
        covered = sum(random.random() <= calibration[18] for _ in range(20))
        small += p_value(covered, 20, 19, 19) < 0.05
    assert 0 < small < 0.05 * 2000 + 3 * math.sqrt(2000 * 0.05 * 0.95)


def test_holm_is_the_closure_of_bonferroni() -> None:
    random = Random(0)
    for _ in range(20):
        values = [random.random() ** 3 for _ in range(5)]
        subsets = [each for size in range(1, 6) for each in itertools.combinations(range(5), size)]
        closed = [
            max(min(1.0, len(each) * min(values[i] for i in each)) for each in subsets if index in each)
            for index in range(5)
        ]
        assert holm(values) == pytest.approx(closed)


def test_too_many_uncovered_clients_are_a_failure_and_tightness_is_of_the_same_place() -> None:
    right: dict[str, Any] = {"statement": "loss", "method": "WAFL", "fold": 0, "own_sampling": False}
    right |= {"calibration": 19, "place": 19, "confidence": 0.95, "promised": 1.0}
    good = right | {"task": "good", "happened": [0.5] * 18 + [0.8, 2.0]}
    bad = right | {"task": "bad", "happened": [2.0] * 15 + [0.5] * 5}
    silent = right | {"task": "silent", "promised": None, "why": "3 calibration clients are too few"}
    result = {each["task"]: each for each in verdicts([good, bad, silent], 0.05)}
    assert (result["good"]["failed"], result["good"]["covered"], result["good"]["sealed"]) == (False, 19, 20)
    assert result["good"]["expected"] == pytest.approx(0.95)
    assert result["good"]["tightness"] == pytest.approx(0.5)  # 20 of 21 places: the largest
    assert result["bad"]["failed"]
    assert result["bad"]["p_holm"] == pytest.approx(2.0 * p_value(5, 20, 19, 19))
    assert result["silent"]["says_nothing"] == "3 calibration clients are too few"
    assert tightness([0.5, 0.25], 0.95) is None


def test_fewer_clients_say_less() -> None:
    result = [confidence_for([0.95, 0.8], count, own_sampling=False) for count in (3, 4, 18, 19, 40)]
    assert result == [None, (0.8, 4), (0.8, 16), (0.95, 19), (0.95, 39)]
    assert [confidence_for([0.95, 0.8], count, own_sampling=True) for count in (8, 9, 39)] == [
        None,
        (0.8, 9),
        (0.95, 39),
    ]


def test_a_scale_that_promises_do_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="scale='small' must be full or smoke"):
        tasks_of(registered("promises")[0], "small")


def test_the_command_issues_nothing_without_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = ["--output", str(tmp_path), "--work", str(tmp_path)]
    for options, message in (([], "openssl genpkey"), (["--open"], "issue promises first")):
        with pytest.raises(SystemExit) as error:
            main(["promises", "--smallest", *options, *folders])
        assert error.value.code == 2
        assert message in capsys.readouterr().err
