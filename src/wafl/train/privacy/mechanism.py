"""Protect clients by differential privacy: clip their updates, and add noise to the mean.

McMahan, Ramage, Talwar and Zhang, "Learning differentially private recurrent language models" (ICLR 2018), with a fixed
number of clients per round: the model gets ``1/m sum_i clip(update_i) + N(0, (z C / m)^2)``, where m is the size of the
cohort, C the clipping norm and z the noise multiplier. Leaving one client out changes the sum by at most C, so each
round of a client is a Gaussian mechanism with noise multiplier z. Cohorts are drawn from the seed, which is not secret,
so their randomness adds no privacy.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from wafl.base.options import Positive, Range, frozen
from wafl.objectives.ball.cost_matrix import CLIENTS, CostMatrix
from wafl.objectives.base import learner_of
from wafl.parts.messages import PARAMS, Query
from wafl.results.progress import Progress
from wafl.results.run import Run
from wafl.tasks.modes.statistics import FROZEN
from wafl.tasks.task import Task
from wafl.train.clients import Clients, Engine
from wafl.train.privacy.accountant import epsilon_of, noise_for
from wafl.train.privacy.noise import clipped_sum, noisy
from wafl.train.spec import Spec
from wafl.train.trust.admission import Admitted
from wafl.train.trust.caps import Caps


@frozen
class Privacy:
    """Differential privacy of the clients: updates are clipped, and their mean gets noise."""

    clip_norm: Annotated[float, Positive(), "An update that is longer is shortened to this length."] = 1.0
    epsilon: Annotated[
        float,
        Positive(),
        "What a client that takes part in every round may spend in one run; the noise is found from it.",
    ] = 8.0
    delta: Annotated[
        float,
        Range(0, 1, low_open=True, high_open=True),
        "The probability with which more than epsilon may leak: well below one over the number of clients.",
    ] = 1e-5
    noise_multiplier: Annotated[
        float | None,
        Positive(),
        "Instead of epsilon: the standard deviation of the noise on the sum of a round's updates, over clip_norm.",
    ] = None

    def noise(self, rounds: int) -> float:
        """Return the noise multiplier of a run of ``rounds`` rounds."""
        return self.noise_multiplier or noise_for(self.epsilon, self.delta, rounds)

    def spent(self, runs: Sequence[Run], rounds: int) -> dict[str, float]:
        """Return the budget spent by the most active client, in all these runs and in the costliest of them."""
        taken = [Counter(client for record in run.history for client in record.participants) for run in runs]
        noise = self.noise(rounds)
        each = max((max(counts.values(), default=0) for counts in taken), default=0)
        every = max(sum(taken, Counter[int]()).values(), default=0)
        return {
            "epsilon": epsilon_of(self.delta, noise, each),
            "epsilon_of_all_seeds": epsilon_of(self.delta, noise, every),
            "delta": self.delta,
            "noise_multiplier": noise,
            "clip_norm": self.clip_norm,
        }


def check_private(name: str, spec: Spec) -> None:
    """Raise ValueError if a method uses anything from its clients besides the mean of their updates."""
    method = spec.method
    reasons = {
        "weights its clients: set client_weights = 'uniform'": not method.client_weights.equal,
        "needs each client's model: use a server that takes their mean": not method.server.averages,
        f"has clients send more than their updates ({', '.join(method.local.sends)})": bool(method.local.sends),
        "finds gamma from the clients' costs: give gamma, not radius": learner_of(method.objective) is not None,
        "learns statistics of BatchNorm: freeze them": spec.schedule.statistics != FROZEN,
    }
    for reason, applies in reasons.items():
        if applies:
            raise ValueError(f"privacy: {name} {reason}")


@dataclass(frozen=True)
class PrivateClients:
    """Clients whose updates are visible only as a mean with noise; everything else is as for the inner clients."""

    inner: Clients
    privacy: Privacy
    sees_updates = False

    def engine(self, task: Task, specs: Mapping[int, Spec], group: int, progress: Progress) -> Engine:
        """Return an engine that replaces all replies by their noisy mean."""
        inner = self.inner.engine(task, specs, group, progress)
        noise = self.privacy.noise(next(iter(specs.values())).schedule.rounds)

        def run(queries: Sequence[Query], runs: Sequence[int]) -> list[Admitted]:
            asked = [len(query.clients) for query in queries]
            return [self._private(*each, noise) for each in zip(asked, inner(queries, runs), strict=True)]

        return run

    @property
    def caps(self) -> Caps | None:
        """None, since caps compare clients, and no client may influence the weight of another."""
        return None  # they compare clients, and no client may influence the weight of another

    def cost_matrix_of_clients(self, *_: Any) -> CostMatrix:
        """Raise ValueError, since the clients' class means are not private."""
        raise ValueError(
            f"cost_matrix={CLIENTS!r} needs the class means of clients, which are not private: give a matrix"
        )

    def _private(self, asked: int, answer: Admitted, multiplier: float) -> Admitted:
        """Return the answer with ``start + (sum of clip(update_i) + noise) / m`` in place of every reply.

        Later code sees no single update. The operating system draws the noise, so a resumed run has different noise.
        """
        if answer.diverged or not answer.replies.clients or PARAMS not in answer.replies.vectors:
            return answer
        start, replies = answer.query.params, answer.replies
        deviation = multiplier * self.privacy.clip_norm
        total = clipped_sum(replies.params - start, self.privacy.clip_norm, deviation).cpu()
        private = (start + (noisy(total, deviation) / asked).to(start)).expand_as(replies.params)
        return replace(answer, replies=replace(replies, vectors={**replies.vectors, PARAMS: private}))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
