"""A journal gives back what was appended, or says that it is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from wafl.train.checkpoint.journal import Journal

ENTRIES = [b"", b"one", b"two\n\n", bytes(range(256))]


def test_entries_are_read_as_they_were_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append(ENTRIES[:2])
    journal.append([])
    journal.append(ENTRIES[2:])
    assert list(Journal(journal.path, journal.size).read()) == ENTRIES
    assert journal.path.stat().st_size == journal.size


def test_what_comes_after_the_size_that_counts_is_cut_off(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append(ENTRIES)
    size = journal.size
    journal.append([b"not counted"])
    with journal.path.open("ab") as file:
        file.write(b"50 torn")
    again = Journal(journal.path, size)
    assert list(again.read()) == ENTRIES
    again.append([b"new"])
    assert list(Journal(journal.path, again.size).read()) == [*ENTRIES, b"new"]
    assert journal.path.stat().st_size == again.size


def test_a_flip_of_any_bit_is_noticed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append(ENTRIES[:3])
    whole = journal.path.read_bytes()
    for offset in range(len(whole)):
        for bit in (1, 128):
            damaged = bytearray(whole)
            damaged[offset] ^= bit
            journal.path.write_bytes(bytes(damaged))
            with pytest.raises(ValueError, match="journal is damaged"):
                list(journal.read())


def test_a_journal_that_is_too_short_is_damaged(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append(ENTRIES)
    whole = journal.path.read_bytes()
    for length in range(len(whole)):
        journal.path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="journal is damaged"):
            list(journal.read())


def test_a_journal_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "journal").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        Journal(tmp_path / "journal").append([b"one"])
    assert (tmp_path / "precious").read_text() == "mine"
