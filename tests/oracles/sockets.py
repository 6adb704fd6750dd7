"""Where processes listen, as the kernel says."""

from __future__ import annotations

import os
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path

LISTEN = "0A"


def listening(pids: Iterable[int]) -> set[str]:
    """The addresses at which these processes accept TCP connections."""
    held: set[str] = set()
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                held.add(os.readlink(file))
            except OSError:  # it was closed in the meantime
                continue
    result: set[str] = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, _, state, *rest = line.split()[1:]
            if state == LISTEN and f"socket:[{rest[5]}]" in held:
                result.add(_address(local.partition(":")[0]))
    return result


def _address(word: str) -> str:
    """The kernel prints addresses as words of four bytes, each in the machine's order."""
    words = [bytes.fromhex(word[start : start + 8])[::-1] for start in range(0, len(word), 8)]
    return str(ip_address(b"".join(words)))
