"""Client weights from optimal transport: how far the clients' data lie from a target, or from each other.

- ``nearest.py``, ``mixture.py``: the nearest source, or mixture of sources, to a target;
- ``cover.py``, ``barycenter.py``: without a target, a center for all clients;
- ``result.py``: what these return;
- ``distances.py``: W_2 between two data sets, exact or entropic; the ground cost and POT's solver: ``costs.py``;
- ``clouds.py``: points read from whatever a user has, checked and sampled;
- ``cutting.py``, ``mixture_distance.py``: the solver of ``mixture`` and ``cover``;
- ``cuts.py``: the exact mixture without the sources' examples, and what that leaks.
"""

from wafl.weights.transport.barycenter import barycenter, bilevel
from wafl.weights.transport.cover import cover
from wafl.weights.transport.distances import Distance, distance
from wafl.weights.transport.mixture import mixture
from wafl.weights.transport.nearest import nearest
from wafl.weights.transport.result import TransportWeights

__all__ = ["Distance", "TransportWeights", "barycenter", "bilevel", "cover", "distance", "mixture", "nearest"]
