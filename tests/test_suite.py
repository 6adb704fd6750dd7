"""The suite keeps its own rules."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def test_a_test_that_starts_a_process_without_the_mark_fails() -> None:
    with pytest.raises(RuntimeError, match=r"starts .*: mark it with pytest.mark.processes"):
        subprocess.run([sys.executable, "-c", ""], check=True)
    with pytest.raises(RuntimeError, match="mark it with"):
        os.fork()


@pytest.mark.processes
def test_a_test_with_the_mark_may_start_processes() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)
