"""Report participation: which clients were left out, in how many rounds and why, and their spent privacy."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wafl.base.describe import some
from wafl.base.errors import FolderError
from wafl.base.files import read_limited
from wafl.base.json_types import check_types, parsed_table
from wafl.results.run import Run

NODES: dict[str, Any] = {
    "updated": str,
    "state": str,
    "run": str | None,
    "round": int | None,
    "nodes": list[dict[str, Any]],
    "left_out": {"*": {"rounds": int, "last": int, "why": str}},
}
NODE: dict[str, Any] = {
    **dict.fromkeys(("id", "name", "last_failure"), str),
    "clients": list[str],
    "present": bool,
    **dict.fromkeys(("bytes_sent", "bytes_received", "replies", "failures"), int),
    **dict.fromkeys(("last_seen", "last_reply"), str | None),
}


def read_nodes(file: Path) -> dict[str, Any]:
    """Read a Flower server's last report about its nodes; empty if there is no ``nodes.json``."""
    if not file.is_file():
        return {}
    try:
        status = parsed_table(read_limited(file))
        check_types(status, NODES)
        for index, node in enumerate(status["nodes"]):
            check_types(node, NODE, f"nodes.{index}")
    except ValueError as error:
        raise FolderError(f"{file} is damaged: {error}. The server writes it again while it works") from error
    return status


def left_out(runs: Sequence[Run], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the clients that were asked but left out: in how many rounds of all runs, and the first reason."""
    clients: dict[str, dict[str, Any]] = {}
    for record in (record for run in runs for record in run.history):
        counted = set(record.participants)
        for client, why in dict(record.excluded).items():
            if client not in counted:
                clients.setdefault(names[client], {"rounds": 0, "why": why})["rounds"] += 1
    return dict(sorted(clients.items()))


def absences(results: Mapping[str, Any]) -> list[str]:
    """Return one line of text per method for which clients were missing, in training or in the test."""
    texts: list[str] = []
    for label, row in results.get("methods", {}).items():
        absent = [
            f"{name} ({about['rounds']} round{'s' * (about['rounds'] != 1)}: {about['why']})"
            for name, about in row.get("left_out", {}).items()
        ]
        if absent:
            texts.append(f"{label}: without {some(absent)}")
        if row.get("untested"):
            texts.append(f"{label}: not tested: {some(row['untested'])}")
    return texts


def privacies(results: Mapping[str, Any]) -> list[str]:
    """Return one line of text per method with differential privacy: the privacy that a client has spent."""
    texts: list[str] = []
    methods = results.get("methods", {}).items()
    for label, spent in ((label, row["privacy"]) for label, row in methods if "privacy" in row):
        text = f"{label}: epsilon {spent['epsilon']:.3g} at delta {spent['delta']:g} for the model of one seed"
        more = f", {spent['epsilon_of_all_seeds']:.3g} for the models of all seeds"
        texts.append(text + (more if spent["epsilon_of_all_seeds"] > spent["epsilon"] else ""))
    return texts
