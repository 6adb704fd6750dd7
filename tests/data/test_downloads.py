"""Downloads from a real local server, which can also send wrong files, drop the connection, or be absent."""

from __future__ import annotations

import gzip
import hashlib
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wafl.data.named import sources
from wafl.data.named.cache import load_raw
from wafl.data.named.sources import SOURCES, RemoteFile


@dataclass
class Server:
    """Files by path. ``broken`` says how many bytes of a file arrive, ``flaky`` how often it arrives cut in half."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    broken: dict[str, int] = field(default_factory=dict[str, int])
    flaky: dict[str, int] = field(default_factory=dict[str, int])
    requests: list[str] = field(default_factory=list[str])
    patch: pytest.MonkeyPatch = field(default_factory=pytest.MonkeyPatch)

    def offer(self, *mirrors: str) -> None:
        """Make MNIST the small files at these mirrors: a path is on this server, a full address is anywhere."""
        files: list[RemoteFile] = []
        for file, content in zip(SOURCES["mnist"].files, contents(), strict=True):
            bases = [mirror if mirror.startswith("http") else self.url + mirror for mirror in mirrors]
            md5 = hashlib.md5(content).hexdigest()
            files.append(RemoteFile(file.name, tuple(base + file.name for base in bases), md5, len(content)))
            self.files[f"/good/{file.name}"] = content
        self.patch.setitem(SOURCES, "mnist", replace(SOURCES["mnist"], files=tuple(files)))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """It offers MNIST at one good address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path
            state.requests.append(path)
            if path not in state.files:
                self.send_error(404)
                return
            content = state.files[path]
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            cut = path in state.broken or state.flaky.get(path, 0) > 0
            state.flaky[path] = state.flaky.get(path, 0) - 1
            self.wfile.write(content[: state.broken.get(path, len(content) // 2)] if cut else content)

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        state = Server(f"http://127.0.0.1:{http.server_address[1]}", patch=monkeypatch)
        state.offer("/good/")
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        http.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PAUSE", 0.0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def arrays() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    images = (rng.integers(0, 256, (count, 28, 28), np.uint8) for count in (9, 4))
    x_train, x_test = images
    return x_train, np.arange(9, dtype=np.uint8), x_test, np.arange(4, dtype=np.uint8)


def contents() -> list[bytes]:
    """MNIST's four files, only small."""
    packed: list[bytes] = []
    for array in arrays():
        head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        packed.append(gzip.compress(head + array.tobytes(), mtime=0))
    return packed


def unused_port() -> str:
    """A local address where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/"


FIRST = "train-images-idx3-ubyte.gz"


def test_a_good_download_is_kept_as_one_file_and_not_downloaded_again(
    server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "data"
    for _ in range(2):
        raw = load_raw("mnist", folder)
        for got, wanted in zip((raw["x_train"], raw["y_train"], raw["x_test"], raw["y_test"]), arrays(), strict=True):
            np.testing.assert_array_equal(got, wanted)
        assert len(server.requests) == 4
    assert [path.name for path in folder.iterdir()] == ["mnist.npz"]
    with np.load(folder / "mnist.npz") as content:
        assert sorted(content) == ["x_test", "x_train", "y_test", "y_train"]
    assert capfd.readouterr() == ("", "")


def spoil(server: Server, way: str) -> None:
    first, last = f"/good/{FIRST}", "/good/t10k-labels-idx1-ubyte.gz"
    if way == "corrupt":
        server.files[first] = server.files[first][:-1] + b"!"
    elif way == "lost":
        server.broken[first] = 1000
    else:
        del server.files[last]


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("corrupt", "what arrived is not the file: its MD5 is not the published"),
        ("lost", "the connection was lost"),
        ("the last is missing", r"t10k-labels-idx1-ubyte.gz: HTTP status 404"),
    ],
)
def test_a_download_that_fails_is_an_error_and_leaves_nothing(
    way: str, message: str, server: Server, tmp_path: Path
) -> None:
    spoil(server, way)
    with pytest.raises(FileNotFoundError, match=message) as caught:
        load_raw("mnist", tmp_path / "new")
    assert SOURCES["mnist"].files[0].md5 in str(caught.value) or way != "corrupt"
    assert "WAFL_DATA" in str(caught.value)
    assert server.requests == [f"/good/{FIRST}"] * sources.ROUNDS or way != "lost"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("bad", ["unused", "/missing/", "/corrupt/", "/cut/"])
def test_after_a_bad_mirror_the_next_one_is_tried(bad: str, server: Server, tmp_path: Path) -> None:
    server.offer(unused_port() if bad == "unused" else bad, "/good/")
    for file in SOURCES["mnist"].files:
        server.files[f"/corrupt/{file.name}"] = b"<html>Please log in</html>"
        server.files[f"/cut/{file.name}"] = server.files[f"/good/{file.name}"]
        server.broken[f"/cut/{file.name}"] = 10
    assert len(load_raw("mnist", tmp_path)["x_train"]) == 9
    assert [path.name for path in tmp_path.iterdir()] == ["mnist.npz"]


def test_if_all_mirrors_fail_the_error_names_each_and_what_to_do(server: Server, tmp_path: Path) -> None:
    dead = unused_port()
    server.offer(dead, "/missing/")
    with pytest.raises(FileNotFoundError) as caught:
        load_raw("mnist", tmp_path)
    message = str(caught.value)
    assert f"  {dead}{FIRST}: no connection\n" in message
    assert f"  {server.url}/missing/{FIRST}: HTTP status 404\n" in message
    assert f"mnist is not in {tmp_path}" in message
    assert "MNIST/raw/ with train-images-idx3-ubyte" in message
    assert "WAFL_DATA" in message
    assert not list(tmp_path.iterdir())


def test_an_interrupted_download_leaves_no_files(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def interrupted(file: RemoteFile, folder: Path) -> Path:
        (folder / file.name).write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr("wafl.data.named.cache.download", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_raw("mnist", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_no_files(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def full(path: Path, **_: Any) -> None:
        path.write_bytes(b"half of it")
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="No space left on device"):
        load_raw("mnist", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_terminal_shows_one_progress_bar_per_file(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.flaky[f"/good/{FIRST}"] = 1
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    load_raw("mnist", tmp_path)
    out, err = capsys.readouterr()
    assert out == ""
    for file in SOURCES["mnist"].files:
        assert f"download {file.name}" in err
    assert " MB" in err
