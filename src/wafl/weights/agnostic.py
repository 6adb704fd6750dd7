"""AFL: the worst mixture of the clients, one step at a time.

Mohri, Sivek and Suresh, "Agnostic federated learning" (ICML 2019), stochastic AFL: every client takes one step from the
same parameters and reports its loss there; the model descends the weighted loss, and the weights ascend it.
"""

from wafl.base.options import frozen, maker
from wafl.parts.schedule import Schedule
from wafl.weights.learned import Learned


@frozen
class Agnostic(Learned):
    """AFL: every client reports its loss each round, and ``lambda <- projection(lambda + step_size loss)``."""

    asks_everyone = True
    takes_one_step = True

    def check(self, schedule: Schedule, num_clients: int) -> None:
        if schedule.local_steps != 1:
            raise ValueError(
                f"AFL's clients take exactly one step per round: pass local_steps=1 instead of local_epochs="
                f"{schedule.local_epochs}, local_steps={schedule.local_steps}; DRFA is AFL with local steps"
            )
        if schedule.cohort not in (None, num_clients):
            raise ValueError(
                f"AFL asks all {num_clients} clients each round: leave cohort={schedule.cohort} out; DRFA samples"
            )


agnostic = maker(Agnostic)
