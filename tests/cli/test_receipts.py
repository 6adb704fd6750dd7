"""``wafl request``, ``receipt``, ``merge`` and ``verify``: the commands of the page, how they end, whose code runs."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from typer.testing import CliRunner

import wafl
from tests.promises.files import write_keys
from tests.receipts.sites import forge
from wafl.cli.main import app
from wafl.promises.sign import read_key

PAGE = (Path(__file__).parents[2] / "docs" / "receipts.md").read_text()
SITES = [f"s{index}" for index in range(6)]


def call(line: str) -> Any:
    return CliRunner().invoke(app, line.split(), env={"COLUMNS": "300", "NO_COLOR": "1"})


def done(line: str, status: int = 0) -> str:
    result = call(line)
    assert result.exit_code == status, result.output
    return result.output


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> wafl.Federation:
    """A folder with what the page takes for granted; returns the sites' clients."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WAFL_STATE", str(tmp_path / "state"))
    for name in ("keys", "private", "receipts", "mine"):
        Path(name).mkdir()
    clients = wafl.load_dataset("digits").partition(num_clients=2 * len(SITES), iid=True)
    seen, unseen = clients.hold_out(0.5)
    wafl.fit(wafl.models.mlr(seen), seen, wafl.FedAvg(), rounds=2, local_epochs=1).save("model")
    write_keys(tmp_path, "owner")[1].rename("owner.pub")
    for name in SITES:
        write_keys(tmp_path / "private", name)[1].rename(f"keys/{name}.pub")
    shutil.copy("private/s0.pem", "site.pem")
    trained = read_key(write_keys(tmp_path, "trained")[1], private=False)
    Path("trained.txt").write_bytes(trained.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    toml = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert toml is not None
    Path("q.toml").write_text(toml[1].replace("confidence = 0.8", "confidence = 0.6"))
    hold(unseen, 0)
    return unseen


def hold(clients: wafl.Federation, index: int, name: str = "north") -> None:
    """Put the examples of one client where the site's own data are."""
    for file in Path("mine").iterdir():
        file.unlink()
    one = clients.of_clients([index])
    both = [np.concatenate([getattr(part, key).numpy() for part in (one.train, one.test)]) for key in ("raw", "y")]
    np.savez(f"mine/{name}.npz", x=both[0], y=both[1])


def commands() -> list[str]:
    return [line.strip().removeprefix("wafl ") for line in PAGE.splitlines() if line.startswith("    wafl ")]


def test_the_commands_of_the_page_run(place: wafl.Federation) -> None:
    ask, reply, merge, check, own = commands()
    output = done(ask)
    assert "Invited: s0, s1, s2, s3, s4, s5\nOf these may stay silent: 1\n" in output
    output = done(reply)
    assert re.search(r"The receipt says: \d+ examples", output)
    assert "scores above each threshold" in output
    shutil.move("receipt.json", "receipts/s0.json")
    for index, name in enumerate(SITES[1:-1], start=1):
        hold(place, index)
        done(f"receipt request.json --model model --data mine --sign private/{name}.pem -o receipts/{name}.json")
    files = " ".join(map(str, sorted(Path("receipts").glob("*.json"))))
    output = done(merge.replace("receipts/*.json", files))
    assert "| sent no receipt that counts, and are treated as infinity | 1 |" in output
    assert "has an error rate of at most" in Path("next-client.md").read_text()
    before = Path("next-client.json").read_bytes()
    done("merge request.json receipts/")
    assert Path("next-client.json").read_bytes() == before, "a folder is all of its files"
    output = done(check)
    assert output.startswith("PROVEN: the signatures and the arithmetic")
    assert "What rests on honesty" in output
    assert "No key was given" not in output
    hold(place, 2)
    output = done(own.replace("north", "s2"))
    assert output.startswith("PROVEN: the line of s2")
    assert "its numbers follow from these data and this model" in output
    assert done(own.replace("north", "s3"), 1).startswith("WRONG: the line of s3")
    assert done("verify next-client.json", 3).startswith("ATTESTED")
    assert "anyone can make a request" in done("verify next-client.json --accept attested")
    forge(Path("next-client.json"), lambda content: content["statements"][0].update(value=0.0))
    assert done(check, 1).startswith("WRONG: do not rely on this file")


def test_bad_input_is_one_line_and_status_2(place: wafl.Federation) -> None:
    done("request model --invite keys --sign owner.pem --questions q.toml")
    assert "Without --trained, a client that trained can answer" in done("request model --invite keys --sign owner.pem")
    done("request model --invite keys --sign owner.pem --questions q.toml -o request.json")
    done("receipt request.json --model model --data mine --sign site.pem -o receipts/s0.json")
    done("merge request.json receipts")
    for line, message in (
        ("request model --invite private --sign owner.pem", "contains no public key"),
        ("request model --invite keys --sign owner.pub", "contains no private key"),
        ("request model --invite keys --sign owner.pem --questions none.toml", "none.toml"),
        ("request model --invite keys --sign owner.pem --deadline soon", "must be a date"),
        ("request nothing --invite keys --sign owner.pem", "nothing is not a folder"),
        ("receipt none.json --model model --data mine --sign site.pem", "none.json is not a file: pass a request"),
        ("receipt receipts/s0.json --model model --data mine --sign site.pem", "does not say that it is a request"),
        ("receipt request.json --model model --data mine --sign owner.pem", "was not invited"),
        ("receipt request.json --model model --data keys --sign site.pem", "holds no .npz file"),
        ("receipt request.json --model model --data mine --sign site.pem --key keys/s1.pub", "not with this one"),
        ("merge request.json none.json", "none.json does not exist"),
        ("merge request.json receipts --revoked none.txt", "none.txt cannot be read"),
        ("verify next-client.json --receipts none", "none does not exist"),
        ("verify next-client.json --key keys/s1.pub", "not with this one"),
        ("verify next-client.json --data mine", "give the model too"),
        ("verify next-client.json --data mine --model model --client x", "'x' was not invited"),
        ("verify request.json", "wafl.receipts.verify checks what wafl merge writes"),
        ("verify request.json --receipts receipts", "--receipts are for a file that wafl merge wrote"),
        ("merge request.json receipts -o receipts", "is a folder"),
    ):
        result = call(line)
        assert (result.exit_code, message in result.output, result.output.count("Error: ")) == (2, True, 1), (
            line,
            result.output,
        )
    Path("receipts/bad.json").write_text("{")
    assert "Does not count: receipts/bad.json: is not a receipt" in done("merge request.json receipts")


CODE = """
from pathlib import Path

import torch
import wafl

with Path(__file__).with_name("ran").open("a") as file:
    file.write("x")


def net(clients):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
"""
EXPERIMENT = """
name = "mine"
[data]
dataset = "digits"
num_clients = 4
labels_per_client = 10
[model]
kind = "strangers:net"
[schedule]
rounds = 1
local_steps = 1
[attack]
kind = "none"
[[methods]]
method = "FedAvg"
"""


def test_code_of_the_model_folder_runs_only_if_the_site_trusts_it(
    place: wafl.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("strangers.py").write_text(CODE)
    Path("experiment.toml").write_text(EXPERIMENT)
    done("run experiment.toml --output . --name study")
    done("request study/fedavg --invite keys --sign owner.pem --questions q.toml")
    Path("ran").unlink()
    monkeypatch.setenv("XDG_STATE_HOME", str(Path("ours").resolve()))
    sys.modules.pop("strangers", None)
    line = "receipt request.json --model study/fedavg --data mine --sign site.pem"
    refused = done(line, 2)
    assert "runs code, which has not run here before: strangers:net" in " ".join(refused.split())
    assert not Path("ran").exists()
    assert not Path("receipt.json").exists()
    done(f"{line} --trust")
    assert Path("ran").exists()
    sys.modules.pop("strangers", None)
