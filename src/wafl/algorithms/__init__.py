"""Server logic: what is asked of clients each round, and what is made of their replies."""

from __future__ import annotations

from wafl.algorithms.agnostic import Agnostic
from wafl.algorithms.averaging import Averaging
from wafl.algorithms.base import Algorithm, Query, Replies, Setting, State
from wafl.algorithms.snapshot import Snapshot
from wafl.weights import ClientWeights, Learned

__all__ = ["Agnostic", "Algorithm", "Averaging", "Query", "Replies", "Setting", "Snapshot", "State", "make_algorithm"]


def make_algorithm(setting: Setting, client_weights: ClientWeights) -> Algorithm:
    """The algorithm that the rule for the client weights calls for, with bad combinations refused."""
    if not isinstance(client_weights, Learned):
        return Averaging(setting, client_weights)
    if client_weights.rule == "snapshot":
        return Snapshot(setting, client_weights)
    schedule, total = setting.schedule, len(setting.num_examples)
    if schedule.local_epochs is not None or schedule.local_steps != 1:
        raise ValueError(
            "AFL's clients take exactly one step a round: pass local_steps=1 instead of "
            f"local_epochs={schedule.local_epochs}, local_steps={schedule.local_steps}; DRFA is AFL with local steps"
        )
    if schedule.cohort not in (None, total):
        raise ValueError(f"AFL asks all {total} clients each round: leave cohort={schedule.cohort} out; DRFA samples")
    return Agnostic(setting, client_weights)
