"""Store the clients of a study on Flower in ``roster.json``, for use without any node."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never

import torch

from wafl.base.errors import FolderError
from wafl.base.files import read_limited, sealed, unsealed, write_whole
from wafl.config.plan import FindClients
from wafl.data.bring.intake import Intake
from wafl.studies.folder import StudyFolder
from wafl.train.clients import Roster

CPU = torch.device("cpu")


def write_roster(folder: Path, roster: Roster) -> None:
    """Write the clients of a study to its folder."""
    write_whole(folder / "roster.json", sealed({**vars(roster), "intake": roster.intake.to_json()}))


def read_roster(folder: Path) -> Roster | None:
    """Return the clients of a study from its folder, or None if they were not written."""
    file = folder / "roster.json"
    if not file.exists():
        return None
    about = unsealed(read_limited(file))
    values: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in about.items()}
    values["intake"] = Intake.from_json(about.get("intake"))
    return Roster(**values)


def clients_by_name(folder: StudyFolder) -> FindClients | None:
    """Return a source of remembered clients of a study on Flower; None if its clients are in this process."""
    if folder.experiment().engine == "embedded":
        return None
    roster = known_roster(folder)
    if roster is None:
        raise _lost(folder, "is missing")
    return lambda entries: Remembered(roster)


def known_roster(folder: StudyFolder) -> Roster | None:
    """Return the clients at the start of a study, or None if it stopped before they were asked."""
    try:
        roster = read_roster(folder.path)
    except (ValueError, KeyError, TypeError) as error:
        raise _lost(folder, f"is damaged ({error})") from error
    if roster is None and (folder.results.exists() or folder.checkpoint.exists()):
        raise _lost(folder, "is missing")
    return roster


def _lost(folder: StudyFolder, what: str) -> FolderError:
    return FolderError(
        f"{folder.path / 'roster.json'} {what}: it says which client is which and whose key brought it, which nothing "
        "else here knows: put it back, or start a new study. Saved runs still load with wafl.load_run"
    )


@dataclass(frozen=True)
class Remembered:
    """Clients of which only the roster is known; they neither train nor test."""

    roster: Roster
    absent: str = ""
    device: torch.device = CPU
    tolerance = caps = None
    testable = sees_updates = False

    def check(self, *_: Any, **__: Any) -> None:
        """Do nothing, since nodes check the model against their examples."""

    def fingerprint(self) -> Mapping[str, str]:
        """Return no digests, because a server does not know the examples of nodes."""
        return {}

    def uneven_columns(self) -> str:
        """Return an empty string, because a server does not know the examples of nodes."""
        return ""

    def _unreachable(self, *_: Any, **__: Any) -> Never:
        raise FolderError("the clients of this study are on nodes: only a server that reaches them trains or tests it")

    cost_matrix_of_clients = engine = evaluate = evaluate_parts = _unreachable
