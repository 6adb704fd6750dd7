"""Define methods that train on the worst distribution in a ball around each client's data."""

from typing import Annotated, Any

from wafl.base.norms import typical_length
from wafl.base.options import Norm, Positive, Tunable
from wafl.local import Consensus
from wafl.methods.preset import Served, Stepped, Weighted, preset
from wafl.objectives import Resilient, Sinkhorn, Wasserstein


@preset(
    'Nguyen et al., "On the generalization of Wasserstein robust federated learning", 2022',
    r"\min_\theta \sum_i \lambda_i \, \mathbb{E}_{z \sim P_i} \Big[ \sup_{z'} \; \ell(\theta, z') - "
    r"\gamma \, d(z', z)^p \Big]",
    "If test data may shift in any direction, in a geometry that you choose by the norm, and if you want certificates.",
)
class WAFL(Wasserstein, Weighted, Served, Stepped):
    """Wasserstein-robust federated learning: FedAvg on ``phi_gamma`` (see :class:`wafl.objectives.Wasserstein`).

    If you give neither gamma nor radius, gamma is 0.5, the paper's choice for MNIST.
    """


@preset(
    'Wang, Gao and Xie, "Sinkhorn distributionally robust optimization", Operations Research 2025, on every client',
    r"\min_\theta \sum_i \lambda_i \, \mathbb{E}_{P_i} \Big[ \gamma \varepsilon \log \mathbb{E}_{\delta \sim "
    r"N(0, \sigma^2 I)} \, e^{\ell(\theta, (x + \delta, y)) / (\gamma \varepsilon)} \Big], \qquad "
    r"\varepsilon = 2 \sigma^2",
    "As WAFL, if test data may shift to anywhere in a region, not only to its worst point.",
)
class SinkhornDRO(Sinkhorn, Weighted, Served, Stepped):
    """WAFL with a Sinkhorn ball: the worst case is spread out (see :class:`wafl.objectives.Sinkhorn`)."""


@preset(
    'After Wang et al., "Distributionally robust federated learning with outlier resilience", 2025; the sign of '
    "the reweighting is ours",
    r"\min_\theta \sum_i \lambda_i \min_{w} \; \mathbb{E}_{w} \big[ \phi_\gamma(\theta, z) \big] + \tau \, "
    r"\mathrm{KL}(w \,\|\, P_i), \qquad w(z) \propto e^{-\phi_\gamma(\theta, z) / \tau}",
    "As WAFL, if some of the training examples are garbage: mislabeled, corrupted, or of no class.",
)
class ResilientWAFL(Resilient, Weighted, Served, Stepped):
    """WAFL that ignores examples that no model explains (see :class:`wafl.objectives.Resilient`)."""


@preset(
    'After Bai, Wong, Qiao and Ho, "Distributionally robust federated learning: An ADMM algorithm", 2503.18436, 2025: '
    "a ball of order 1 around each client and ADMM, here by local steps and for cross-entropy",
    r"\min_\theta \sum_i \lambda_i \sup_{W_1(Q, P_i) \le \rho} \mathbb{E}_Q \, \ell(\theta, z), \qquad u_i "
    r"\leftarrow u_i + c (\theta_i - \bar\theta), \quad \bar\theta \leftarrow \sum_i \lambda_i (\theta_i + u_i / c)",
    "For a linear model, if each client has little data: balls of order 1 penalize the slope of the model.",
    lacks={"bounds": "use WAFL(radius=..., power=1, local=wafl.local.consensus()), which may have bounds"},
)
class DRFL(Consensus, Weighted, Served):
    """A Wasserstein ball of order 1 around each client's data, by ADMM, for linear models with cross-entropy.

    Clients descend ``E[loss] + radius L``, the worst loss in their ball, with L the largest ``||w_j - w_k||_*`` of two
    classes (see :class:`wafl.objectives.Wasserstein`), by the steps of :class:`wafl.local.Consensus`.
    """

    radius: Annotated[
        float, Positive("; without a ball use FedAvg"), Tunable(comparable=typical_length), "The size of each ball."
    ] = 0.1
    norm: Annotated[float, Norm, Tunable(), "The ground norm: 1, 2 or inf."] = 2

    def parts(self) -> dict[str, Any]:
        """Return the parts of the method, with the ball as its objective."""
        ball = Wasserstein(radius=self.radius, norm=self.norm, power=1, bounds=None)
        return {**super().parts(), "objective": ball}
