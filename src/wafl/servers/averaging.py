"""The server of FedAvg and of the paper's Algorithm 1: the mean of the clients' models, weighted by lambda.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data" (AISTATS 2017).
"""

from dataclasses import field

from wafl.base.options import frozen, maker
from wafl.parts.server import Server
from wafl.servers.aggregating import Aggregating, Stepping
from wafl.servers.sgd import SGD


@frozen
class Averaging(Aggregating):
    """The weighted mean of the clients' models, handed to an optimizer."""

    optimizer: Stepping = field(default_factory=SGD)

    @property
    def averages(self) -> bool:
        return type(self) is Averaging  # one that derives from it may look at each model

    aggregate = Server.aggregate


averaging = maker(Averaging)
