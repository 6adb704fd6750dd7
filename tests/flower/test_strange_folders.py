"""A node's folder with files that promise more than they hold, or hold more than there is memory for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.test_unpack import npy, zipped
from wafl.base.errors import ConfigError
from wafl.flower.node.site import read_folder


def test_a_header_that_promises_more_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    zipped(tmp_path / "huge.npz", x=npy((10**14,), bytes(8)), y=npy((1,), bytes(8)))
    with pytest.raises(ConfigError, match=r"huge.npz cannot be read: x holds 8 bytes"):
        read_folder(tmp_path)


def test_a_node_does_not_read_what_its_memory_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wafl.flower.node.site.free_bytes", lambda device: 1000)
    zipped(tmp_path / "a.npz", x=npy((200, 1), bytes(1600)), y=npy((200,), bytes(1600), "<i8"))
    with pytest.raises(ConfigError, match=r"a.npz cannot be read: it unpacks to more than 1,000 bytes"):
        read_folder(tmp_path)
