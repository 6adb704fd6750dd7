"""Client weights from optimal transport: how far the clients' data lie from a target, or from each other."""

from wafl.weights.transport.barycenter import barycenter
from wafl.weights.transport.cover import cover
from wafl.weights.transport.distances import Distance, distance
from wafl.weights.transport.mixture import mixture
from wafl.weights.transport.nearest import nearest
from wafl.weights.transport.result import TransportWeights

__all__ = ["Distance", "TransportWeights", "barycenter", "cover", "distance", "mixture", "nearest"]
