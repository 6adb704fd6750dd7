"""Client weights from optimal transport: how far the clients' data lie from a target, or from each other."""

from wafl.transport.barycenter import barycenter
from wafl.transport.cover import cover
from wafl.transport.distances import Distance, distance
from wafl.transport.mixture import mixture
from wafl.transport.nearest import nearest
from wafl.transport.result import TransportWeights

__all__ = ["Distance", "TransportWeights", "barycenter", "cover", "distance", "mixture", "nearest"]
