"""What learns the scalars of an objective, such as WAFL's gamma, from the cost of its moves."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from wafl.tasks.problem import Problem


class Learner(ABC):
    """Changes an objective's scalars round by round: derive from it, and write ``next_scalars``."""

    server_side: frozenset[str] = frozenset()
    """The names of the objective's options that only this uses; they may differ between lanes of one batched run."""
    endless: bool = False
    """Whether the ball has distributions with a little mass as far away as you like."""
    averages_cost: bool = False
    """Whether clients report the mean cost of all local steps instead of the cost of the first step."""

    @property
    def undecided(self) -> bool:
        """Whether the radius is still to be chosen, by leaving clients out."""
        return False

    @property
    def target(self) -> float | None:
        """The root mean cost that training is to achieve, if there is one."""
        return None

    def warm_up(self, rounds: int) -> int:
        """Return after how many of so many rounds the scalars no longer depend on how many there are."""
        return 0

    def first_scalars(self, scalars: Mapping[str, float], lowest: float, rounds: int) -> dict[str, float]:
        """Return the scalars of the first round; ``lowest`` is the :meth:`lowest_gamma` of the first model."""
        return dict(scalars)

    @abstractmethod
    def next_scalars(self, scalars: Mapping[str, float], cost: float, lowest: float, rounds: int) -> dict[str, float]:
        """Return the scalars after a round whose moves cost ``cost`` on average."""

    def lowest_gamma(self, problem: Problem) -> float:
        """Return what a gamma that is learned must not fall below for the model of the first lane."""
        return 0.0
