"""FedNova's server: clients that take more local steps do not count more.

Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated optimization" (NeurIPS 2020), for
clients that take plain gradient steps.
"""

from torch import Tensor

from wafl.base.options import frozen, maker
from wafl.parts.update import Update
from wafl.servers.averaging import Aggregating


@frozen
class Normalized(Aggregating):
    """``start + tau sum_i w_i (model_i - start) / tau_i``, with ``tau_i`` local steps and ``tau = sum_i w_i tau_i``.

    It differs from the mean if clients take different numbers of steps, as with ``local_epochs``. The server computes
    the number of steps from the size that a client reports. Momentum is not taken into account.
    """

    one_per_node = False

    def needs_sizes(self, local_steps: int | None) -> bool:
        return local_steps is None

    def aggregate(self, update: Update) -> Tensor:
        directions = update.deltas / update.steps[:, None]
        return update.start + update.mean(update.steps) * update.mean(directions)


normalized = maker(Normalized)
