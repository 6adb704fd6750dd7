"""The live pages: what they answer to whom, and that they write nothing."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from wafl.base.errors import FolderError
from wafl.cli.main import app
from wafl.config.read import parse_experiment
from wafl.studies.folder import StudyFolder
from wafl.studies.pages.live import Pages, Server, is_local

EXPERIMENT = {
    "name": "live",
    "data": {"dataset": "digits", "num_clients": 3, "iid": True},
    "schedule": {"rounds": 2, "local_steps": 1, "learning_rate": 0.1},
    "methods": [{"method": "FedAvg"}],
    "attack": {"kind": "none"},
}


@pytest.fixture
def studies(tmp_path: Path) -> Path:
    folder = StudyFolder.create(tmp_path / "a <b> study", parse_experiment(EXPERIMENT, "here"))
    line = {"method": "fedavg", "seed": 0, "round": 0, "loss": 2.5, "cohort": [0, 1], "excluded": [[1, "timeout"]]}
    lines = [{**line, "round": number} for number in range(2)]
    folder.metrics.write_text("".join(json.dumps(each) + "\n" for each in lines))
    (tmp_path / "no study").mkdir()
    (tmp_path / "garbage").mkdir()
    for name in ("config.toml", "about.json", "results.json", "metrics.jsonl", "nodes.json"):
        (tmp_path / "garbage" / name).write_bytes(b"\xff\x00[[[")
    return tmp_path


@contextmanager
def served(folder: Path, token: str | None = None) -> Generator[Server, None, None]:
    with Server(folder, token=token) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(
    server: Server, path: str, headers: Mapping[str, str] | None = None, method: str = "GET"
) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_study_of_a_folder_has_a_page_and_nothing_is_written(studies: Path) -> None:
    before = snapshot(studies)
    with served(studies) as server:
        status, text, headers = ask(server, "/")
        assert status == 200
        assert "a &lt;b&gt; study" in text
        assert "/study/garbage" in text
        assert "no study" not in text
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        status, text, _ = ask(server, "/study/a%20%3Cb%3E%20study")
        assert status == 200
        assert "training loss" in text
        assert "timeout" in text
        status, text, _ = ask(server, "/study/garbage")
        assert status == 200
        assert "Left out" in text
        assert ask(server, "/plotly.js")[0] == 200
    assert snapshot(studies) == before


def test_a_page_that_has_not_changed_is_not_sent_again(studies: Path) -> None:
    with served(studies / "a <b> study") as server:
        _, text, headers = ask(server, "/")
        again = {"If-None-Match": headers["ETag"]}
        assert ask(server, "/", again)[:2] == (304, "")
        metrics = studies / "a <b> study" / "metrics.jsonl"
        metrics.write_text(
            metrics.read_text() + metrics.read_text().splitlines()[-1].replace('"round": 1', '"round": 2')
        )
        status, changed, _ = ask(server, "/", again)
        assert status == 200
        assert changed != text


@pytest.mark.parametrize(
    "path", ["/study/..", "/study/%2e%2e%2fetc", "/study/no%20study", "/etc/passwd", "/study/garbage/config.toml"]
)
def test_nothing_else_can_be_read(studies: Path, path: str) -> None:
    with served(studies) as server:
        assert ask(server, path)[0] == 404


def test_other_names_of_this_machine_are_refused(studies: Path) -> None:
    """A stranger's page may have its own name lead here."""
    with served(studies) as server:
        assert ask(server, "/", {"Host": "evil.example:80"})[0] == 403
        assert ask(server, "/", {"Host": "localhost:80"})[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_sent(studies: Path, method: str) -> None:
    with served(studies) as server:
        assert ask(server, "/", method=method)[0] == 501


def test_elsewhere_a_token_is_needed_and_then_remembered(studies: Path) -> None:
    with pytest.raises(ValueError, match="needs a token"):
        Server(studies, "0.0.0.0")
    with served(studies, "secret") as server:
        assert server.url.endswith("/?token=secret")
        assert ask(server, "/")[0] == 403
        assert ask(server, "/?token=other")[0] == 403
        status, _, headers = ask(server, "/?token=secret")
        assert status == 200
        assert "HttpOnly" in headers["Set-Cookie"]
        assert ask(server, "/plotly.js", {"Cookie": headers["Set-Cookie"].partition(";")[0]})[0] == 200


def test_a_link_in_a_study_shows_nothing_of_where_it_leads(studies: Path) -> None:
    secret = studies / "secret"
    secret.write_text("do not show")
    (studies / "garbage" / "config.toml").unlink()
    (studies / "garbage" / "config.toml").symlink_to(secret)
    pages = Pages(studies)
    with pytest.raises(FolderError, match="is a link"):
        pages.page("/study/garbage")
    assert "do not show" not in (pages.page("/") or "")


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("example", False)]
)
def test_only_loopback_addresses_are_local(host: str, local: bool) -> None:
    assert is_local(host) is local


def test_serving_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["serve", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert "is not a folder" in result.output
