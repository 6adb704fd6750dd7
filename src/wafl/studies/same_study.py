"""Check whether a study continues with the same data, model, code and versions."""

import json
from collections.abc import Mapping
from hashlib import sha256

from wafl.base.errors import FolderError, VersionWarning, warn_user
from wafl.base.fingerprint import changed
from wafl.config.plan import Plan
from wafl.data.federation import Federation
from wafl.studies.folder import StudyFolder, version_of
from wafl.train.spec import code_of_methods

DECISIVE = ("wafl-learn", "torch")
"""The packages whose versions determine bits."""


def fingerprint_of(plan: Plan) -> dict[str, str]:
    """Return digests of everything that determines a study's numbers, besides its file, by subject."""
    code = code_of_methods(spec for entry in plan.entries for spec in entry.specs(plan.experiment.seeds))
    digests = {"code of the methods": _digest(sorted(code.items())), **plan.trainer().subject()}
    if plan.federation is not None and "training examples" not in digests:  # clients on simulated nodes
        digests |= plan.federation.fingerprint()
    return digests | unseen_fingerprint(plan.unseen)


def data_fingerprint(clients: Federation, unseen: Federation | None) -> dict[str, str]:
    """Return digests of the examples of all clients, which :func:`fingerprint_of` contains."""
    return clients.fingerprint() | unseen_fingerprint(unseen)


def unseen_fingerprint(unseen: Federation | None) -> dict[str, str]:
    """Return the digest of the examples of clients that take no part in training, if there are any."""
    return {} if unseen is None else {"examples of the unseen clients": _digest(unseen.fingerprint())}


def refuse_changes(folder: StudyFolder, now: Mapping[str, str]) -> None:
    """Raise FolderError if a digest differs from the study's start; early versions stored no digests."""
    begun: Mapping[str, str] = folder.read_about().get("fingerprint", {})
    both = begun.keys() & now.keys()
    if changes := [what for what in changed(begun, now) if what in both]:
        raise FolderError(
            f"{folder.path} was begun with other {' and '.join(changes)}: one table must not mix two. Put back what "
            f"was there, or start a new study with wafl run {folder.config}. Nothing was changed"
        )


def warn_of_versions(folder: StudyFolder) -> None:
    """Warn if a study was started with different versions, whose results may differ in bits."""
    begun = folder.read_about().get("packages", {})
    for name in DECISIVE:
        before, now = begun.get(name), version_of(name)
        if before != now:
            warn_user(
                f"{folder.path} was begun with {name} {before}, and this is {now}: what comes now may differ in its "
                "last bits from what is there",
                VersionWarning,
            )


def _digest(about: object) -> str:
    return sha256(json.dumps(about).encode()).hexdigest()
