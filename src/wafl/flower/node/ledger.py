"""Record the privacy that a node's clients have spent, in two files that all runs and apps share.

The spent amount is the largest number in either file and in the counting process (``keeper.py``), so restoring one file
from a backup does not restore privacy. Restoring both does, if no process of the node runs.
"""

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from hashlib import sha256
from logging import INFO, WARNING
from pathlib import Path

from wafl.base.files import lock, read_limited, sealed, unsealed, write_whole
from wafl.flower.node.limits import PATIENCE
from wafl.flower.wire.logs import log
from wafl.flower.wire.values import WireError
from wafl.train.privacy.accountant import epsilon_of
from wafl.train.privacy.records import RecordPrivacy

ROUNDING = 1e-9
"""The rounding tolerance of a sum of costs above the budget, as a fraction of it."""


class Ledger:
    """The sum of ``1 / z^2`` over the noisy steps of each client, with noise multipliers z.

    A client with a sum of s has spent the same as with one release with the noise multiplier ``s^(-1/2)``, even if a
    server chose each step after seeing the last one (Smith and Thakurta, "Fully adaptive composition for Gaussian
    differential privacy", 2022).
    """

    def __init__(self, folder: Path) -> None:
        from platformdirs import user_state_path

        name = sha256(str(folder.resolve()).encode()).hexdigest()[:32]
        self.files = (folder / "privacy.json", user_state_path("wafl") / "privacy" / f"{name}.json")
        self._seen = dict[str, float]()

    def spend(self, steps: Mapping[str, int], privacy: RecordPrivacy) -> None:
        """Count steps of each client before they are taken.

        If any client has too little privacy left, count none and raise WireError. Counted steps stay counted, even if
        the answer is lost.
        """
        with self._locked():
            spent, most = self._read(), privacy.budget * (1.0 + ROUNDING)
            for name, count in steps.items():
                before = spent.get(name, 0.0)
                spent[name] = before + count * privacy.cost
                if spent[name] > most:
                    raise WireError(
                        f"{name} has privacy left for {int(max(0.0, most - before) / privacy.cost)} local steps in all "
                        f"runs, and was asked for {count}: its operator decides how much there is (--privacy)"
                    )
            self._write(spent)
        for name in steps:
            epsilon = epsilon_of(privacy.delta, spent[name] ** -0.5, 1)
            log(INFO, "%s has spent epsilon %.3g of %g at delta %g", name, epsilon, privacy.epsilon, privacy.delta)

    def _locked(self) -> AbstractContextManager[None]:
        self.files[0].parent.mkdir(parents=True, exist_ok=True)
        busy = WireError(f"another process has locked the files of the spent privacy for {PATIENCE:g} s: ask again")
        return lock(self.files[0].with_suffix(".lock"), PATIENCE, busy)

    def _read(self) -> dict[str, float]:
        every = [self._seen, *map(_read, self.files)]
        self._seen = {name: max(each.get(name, 0.0) for each in every) for spent in every for name in spent}
        return dict(self._seen)

    def _write(self, spent: Mapping[str, float]) -> None:
        own, copy = self.files
        write_whole(own, content := sealed({"spent": spent}), 0o600)
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_whole(copy, content, 0o600)
        except OSError as error:
            log(WARNING, "the count of spent privacy has no second copy: %s; set XDG_STATE_HOME", error)
        self._seen = dict(spent)


def _read(file: Path) -> dict[str, float]:
    """Return the content of a file, empty if the file is missing; raise an error if it is damaged."""
    if not file.exists():
        return {}
    try:
        spent = {str(name): float(value) for name, value in unsealed(read_limited(file))["spent"].items()}
        if not all(0.0 <= value < math.inf for value in spent.values()):
            raise ValueError("it contains a number that is not a count")
        return spent
    except (ValueError, KeyError, AttributeError) as error:
        why = f"{file} is damaged ({error}), and the spent privacy is unknown: restore the file"
        raise RuntimeError(why) from error
