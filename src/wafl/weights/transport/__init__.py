"""Compute client weights from optimal transport: by the distance of clients' data to a target or to each other.

``mixture.py`` contains the public rules; ``distances.py`` contains the distances.
"""

from wafl.weights.transport.distances import Distance, TransportWeights, distance
from wafl.weights.transport.mixture import barycenter, bilevel, cover, mixture, nearest

__all__ = ["Distance", "TransportWeights", "barycenter", "bilevel", "cover", "distance", "mixture", "nearest"]
