"""Client weights from optimal transport: how far the clients' data lie from a target, or from each other.

``nearest``, ``mixture``, ``cover`` and ``barycenter`` are public, one file each; they measure by ``distances.py``.
"""

from wafl.weights.transport.barycenter import barycenter, bilevel
from wafl.weights.transport.cover import cover
from wafl.weights.transport.distances import Distance, distance
from wafl.weights.transport.mixture import mixture
from wafl.weights.transport.nearest import nearest
from wafl.weights.transport.result import TransportWeights

__all__ = ["Distance", "TransportWeights", "barycenter", "bilevel", "cover", "distance", "mixture", "nearest"]
