"""Long updates are cut to the median length, after Sun et al., "Can you really backdoor federated learning?" (2019)."""

from typing import Annotated

from torch import Tensor

from wafl.base.options import Positive, frozen, maker
from wafl.parts.lengths import lengths_of, longest_of, shortened
from wafl.parts.update import Update
from wafl.servers.averaging import Aggregating


@frozen
class Clipped(Aggregating):
    """The mean, weighted by lambda, of the models with updates of at most ``multiple`` times the median length.

    The median knows no weights: every client of the round has one vote, and of two updates the longer is compared with
    the shorter. If no update is that long, the result is that of :class:`Averaging`, bit for bit.
    """

    multiple: Annotated[
        float, Positive(), "How many times the median length an update may have; a longer one is shortened."
    ] = 1.0

    def aggregate(self, update: Update) -> Tensor:
        lengths = lengths_of(update.start, update.params)
        longest = lengths.new_tensor(longest_of(lengths, self.multiple)).expand_as(lengths)
        return update.mean(shortened(update.start, update.params, lengths, longest))


clipped = maker(Clipped)
