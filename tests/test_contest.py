"""The contest for speed: all contestants do the same work, and one that does not is said to have failed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.contest import contest, floor, ours, plain
from benchmarks.contest.__main__ import main
from benchmarks.contest.contest import Contestant, at_home, hold, read_peers
from benchmarks.contest.shared.handed import Train, Work
from benchmarks.contest.shared.nets import make_net
from benchmarks.contest.work import KINDS, Size, make_work, opened

SIZE = Size(clients=8, examples=70, cohort=3, rounds=2, epochs=3)
PEERS = Path(__file__).parents[1] / "benchmarks" / "peers"
_SHAKEN: list[Path] = []
MODULES = {"ours": ours, "plain": plain, "floor": floor}


def in_this_process(each: Contestant, path: Path, threads: int | None) -> dict[str, Any]:
    """A turn as it would be in a process.

    ``broken`` fails, ``lazy`` trains a round less, ``alone`` has no clock, and ``shaky`` ends elsewhere each time.
    """
    work = Work.read(str(path))
    if each.name == "broken":
        return {"failed": "ImportError: no module named peer"}
    train: Train = MODULES[each.command[-1].rpartition(".")[2]].prepare(work)
    seconds = {"wafl": 2.0, "plain PyTorch": 6.0}.get(each.name, 1.0)
    cpu = None if each.name == "alone" else seconds
    params = train(work.rounds - (each.name == "lazy"))
    if each.name == "shaky":
        params = {name: value + np.float32(1e-6 * len(_SHAKEN)) for name, value in params.items()}
        _SHAKEN.append(path)
    return {"startup": 1.0, "wall": 2 * seconds, "cpu": cpu, "peak_bytes": 2**20, "params": params}


@pytest.mark.parametrize("kind", ["fedavg", "wafl"])
def test_all_contestants_end_with_the_plain_loops_parameters(kind: str, tmp_path: Path) -> None:
    made = make_work(kind, SIZE)
    made.write(str(tmp_path / "work.npz"))
    work = Work.read(str(tmp_path / "work.npz"))
    wanted = plain.prepare(work)(2)
    assert max(float(np.abs(value - work.params[name]).max()) for name, value in wanted.items()) > 1e-3
    for other in (ours, floor) if kind == "fedavg" else (ours,):
        train = other.prepare(work)
        train(1)  # what came before changes nothing
        for name, value in train(2).items():
            np.testing.assert_allclose(value, wanted[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["fedavg", "cnn", "resnet"])
def test_peers_with_torch_are_handed_the_works_model(kind: str) -> None:
    work = make_work(kind, Size(clients=2, examples=1, cohort=1, rounds=1))
    x = torch.from_numpy(work.x)
    with torch.no_grad():
        torch.testing.assert_close(make_net(work.about["model"], work.params)(x), opened(work)[1](x), rtol=0, atol=0)


def test_whoever_fails_or_does_other_work_is_said_to_and_ratios_are_to_wafl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "_turn", in_this_process)
    monkeypatch.setattr(contest, "JUDGED", 40)
    loop = (sys.executable, "-m", "benchmarks.contest.plain")
    others = [Contestant("broken", ("nothing",)), *(Contestant(name, loop) for name in ("lazy", "alone", "shaky"))]
    result = hold("fedavg", SIZE, [*at_home("fedavg"), *others], repeats=2, clock="cpu")
    rows = result["rows"]
    assert rows["plain PyTorch"]["ratio"] == {"median": 3.0, "lowest": 3.0, "highest": 3.0}
    assert rows["wafl"]["ratio"]["median"] == 1.0
    assert rows["broken"] == {"failed": "ImportError: no module named peer"}
    assert "its parameters differ from the plain loop's by" in rows["lazy"]["failed"]
    assert "failed" not in rows["alone"]
    assert [rows[name]["same_bits"] for name in ("wafl", "alone", "shaky")] == [True, True, False]
    assert (rows["alone"]["clock"], rows["alone"]["ratio"]["median"]) == ("wall", 0.5)
    assert rows["wafl"]["accuracy"] == rows["plain PyTorch"]["accuracy"] > 0.5
    assert 40 * rows["wafl"]["accuracy"] == pytest.approx(round(40 * rows["wafl"]["accuracy"]), abs=1e-9)


def test_the_command_prints_a_table_and_writes_numbers_and_a_chart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contest, "_turn", in_this_process)
    size = ["--clients", "8", "--examples", "70", "--cohort", "3", "--rounds", "1", "--repeats", "1"]
    main(["--work", "fedavg", *size, "--output", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert "plain" in printed
    assert "3.00" in printed
    (result,) = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert result["clients"] == 8
    assert (tmp_path / "out" / "bench.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--work", "gpt"], "argument --work: invalid choice: 'gpt'"),
        (["--clock", "sun"], "argument --clock: invalid choice: 'sun'"),
        (["--repeats", "0"], "--repeats 0 must be at least 1"),
        (["--device", "abacus"], "argument --device: invalid choice: 'abacus'"),
        (["--clients", "3", "--cohort", "4"], "--cohort 4 is more than --clients 3"),
        (["--peers", "."], "holds no peers"),
    ],
)
def test_bad_options_are_refused(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_a_peer_without_its_environment_is_left_out_with_the_way_to_have_it(tmp_path: Path) -> None:
    home = tmp_path / "slowlib"
    home.mkdir()
    (home / "peer.py").write_text("")
    (home / "peer.json").write_text('{"kinds": ["fedavg"], "same_batches": true, "devices": ["cpu"]}')
    peers, missing = read_peers(tmp_path)
    assert peers == []
    assert missing[0].startswith("slowlib is left out. To have it: python3 -m venv")
    (home / ".venv" / "bin").mkdir(parents=True)
    (home / ".venv" / "bin" / "python").write_text("")
    assert [peer.name for peer in read_peers(tmp_path)[0]] == ["slowlib"]


@pytest.mark.slow
@pytest.mark.processes
def test_real_processes_report_what_they_took() -> None:
    result = hold("fedavg", SIZE, at_home("fedavg"), repeats=1, threads=1, clock="cpu")
    for row in result["rows"].values():
        assert "failed" not in row, row
        assert row["cpu"][0] > 0.0
        assert row["peak_bytes"][0] > 2**24


@pytest.mark.parametrize(
    "home", [script.parent for script in sorted(PEERS.glob("*/peer.py"))], ids=lambda home: home.name
)
def test_every_peer_says_what_it_can_do_and_what_it_needs(home: Path) -> None:
    about = json.loads((home / "peer.json").read_text())
    assert set(about["kinds"]) <= set(KINDS)
    assert isinstance(about["same_batches"], bool)
    assert about["devices"] in (["cpu"], ["cpu", "cuda"])
    assert (home / "requirements.txt").read_text().strip()
    compile((home / "peer.py").read_text(), "peer.py", "exec")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("kind", ["fedavg", "cnn", "resnet"])
def test_the_peers_that_are_installed_do_the_work(kind: str) -> None:
    peers = [peer for peer in read_peers(PEERS)[0] if kind in peer.kinds]
    if not peers:
        pytest.skip("no peer has its environment")
    size = Size(clients=3, examples=4, cohort=2, rounds=1) if kind == "resnet" else SIZE
    result = hold(kind, size, [*at_home(kind), *peers], repeats=1, threads=1, clock="cpu")
    assert {name: row["failed"] for name, row in result["rows"].items() if "failed" in row} == {}
