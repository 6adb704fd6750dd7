"""Client weights from optimal transport: how far the clients' data lie from a target, or from each other.

``mixture.py`` has the public rules; they measure by ``distances.py``.
"""

from wafl.weights.transport.distances import Distance, TransportWeights, distance
from wafl.weights.transport.mixture import barycenter, bilevel, cover, mixture, nearest

__all__ = ["Distance", "TransportWeights", "barycenter", "bilevel", "cover", "distance", "mixture", "nearest"]
