"""Server logic: what the server asks of clients each round, and what it makes of their replies."""

from wafl.algorithms.algorithm import Algorithm, Parts
from wafl.algorithms.messages import Query, Replies, Reply, State

__all__ = ["Algorithm", "Parts", "Query", "Replies", "Reply", "State"]
