"""What is written is whole or absent, and goes where it was meant to go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from wafl.base import files
from wafl.base.files import LARGEST, is_locked, not_plain, read_limited, remove_temporary, write_whole


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "results.json").symlink_to("precious")
    write_whole(tmp_path / "results.json", b"new")
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "results.json").read_bytes() == b"new"
    assert not (tmp_path / "results.json").is_symlink()


def test_a_link_at_the_temporary_name_is_never_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even by somebody who guessed it."""
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "guessed")
    (tmp_path / "precious").write_text("mine")
    (tmp_path / ".results.json.guessed.tmp").symlink_to("precious")
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "results.json", b"new")
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "results.json", b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "results.json", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
    assert (tmp_path / "results.json").read_bytes() == b"old"


def test_files_get_the_usual_permissions(tmp_path: Path) -> None:
    write_whole(tmp_path / "one", b"")
    (tmp_path / "other").touch()
    assert (tmp_path / "one").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_links_are_found_at_any_depth_but_not_beyond_them(tmp_path: Path) -> None:
    (tmp_path / "study" / "method").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(tmp_path)
    (tmp_path / "study" / "method" / "seed-1").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "study" / "gone").symlink_to("nowhere")
    links = {path.relative_to(tmp_path / "study").as_posix() for path in not_plain(tmp_path / "study")}
    assert links == {"method/seed-1", "gone"}


def test_what_a_crash_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (".results.json.0123.tmp", "results.json", "mine.tmp", ".hidden"):
        (tmp_path / name).touch()
    remove_temporary(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "mine.tmp", ".hidden"}


def test_looking_at_a_lock_neither_takes_it_nor_misses_it(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / ".lock")
    assert not is_locked(tmp_path / ".lock")
    with lock:
        assert is_locked(tmp_path / ".lock")
    assert not is_locked(tmp_path / ".lock")
    with lock.acquire(timeout=0):
        pass


def test_a_file_of_ours_that_is_too_large_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"12")
    assert read_limited(tmp_path / "small", 2) == b"12"
    with pytest.raises(ValueError, match="more than 0 MiB"):
        read_limited(tmp_path / "small", 1)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(ValueError, match="more than 256 MiB"):
        read_limited(tmp_path / "sparse")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not a plain file"):
        read_limited(tmp_path / "pipe")


def test_a_hard_link_is_no_plain_file(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "own").write_text("own")
    os.link(tmp_path / "elsewhere", tmp_path / "study" / "metrics.jsonl")
    assert [path.name for path in not_plain(tmp_path / "study")] == ["metrics.jsonl"]
