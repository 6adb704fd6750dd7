"""FedGMA's server: parameters on whose direction the clients disagree move less."""

from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import Range, Tunable, frozen, maker
from wafl.parts.update import Update
from wafl.servers.averaging import Aggregating

Agreement = Annotated[float, Range(0, 1), Tunable(), "The agreement at which a parameter moves in full."]
"""The option of the server and of FedGMA."""


@frozen
class Masked(Aggregating):
    """The mean update, coordinate by coordinate times how far the clients agree on its sign.

    The agreement ``|sum_i w_i sign(update_i)|`` of a coordinate is 1 if all clients move it the same way. At or above
    ``threshold`` the coordinate moves in full; below it by its agreement. With a threshold of 0 this is the mean.
    """

    threshold: Agreement = 0.4

    def aggregate(self, update: Update) -> Tensor:
        deltas = update.deltas
        agreement = update.mean(deltas.sign()).abs()
        mask = torch.where(agreement >= self.threshold, 1.0, agreement)
        return update.start + mask * update.mean(deltas)


masked = maker(Masked)
