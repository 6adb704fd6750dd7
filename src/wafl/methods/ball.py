"""Methods that train on the worst distribution in a ball around each client's data."""

from wafl.methods.preset import Served, Stepped, Weighted, preset
from wafl.objectives import Resilient, Sinkhorn, Wasserstein


@preset(
    'Nguyen et al., "On the generalization of Wasserstein robust federated learning", 2022',
    r"\min_\theta \sum_i \lambda_i \, \mathbb{E}_{z \sim P_i} \Big[ \sup_{z'} \; \ell(\theta, z') - "
    r"\gamma \, d(z', z)^p \Big]",
    "If test data may shift in any direction, in a geometry that you choose by the norm, and if you want certificates.",
    place=0,
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
    "As WAFL, if test data may shift to anywhere in a region and not to its worst point alone.",
    place=2,
)
class SinkhornDRO(Sinkhorn, Weighted, Served, Stepped):
    """WAFL with a Sinkhorn ball: the worst case is spread out (see :class:`wafl.objectives.Sinkhorn`)."""


@preset(
    'After Wang et al., "Distributionally robust federated learning with outlier resilience", 2025; the sign of '
    "the reweighting is ours",
    r"\min_\theta \sum_i \lambda_i \min_{w} \; \mathbb{E}_{w} \big[ \phi_\gamma(\theta, z) \big] + \tau \, "
    r"\mathrm{KL}(w \,\|\, P_i), \qquad w(z) \propto e^{-\phi_\gamma(\theta, z) / \tau}",
    "As WAFL, if some of the training examples are garbage: mislabeled, misread, or not of any class.",
    place=3,
)
class ResilientWAFL(Resilient, Weighted, Served, Stepped):
    """WAFL that leaves out examples that no model explains (see :class:`wafl.objectives.Resilient`)."""
