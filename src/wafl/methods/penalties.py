"""Define methods that add a penalty to the loss, or correct it for a client's labels."""

from wafl.methods.preset import Served, Stepped, Weighted, preset
from wafl.objectives import Calibrated, Invariant, SimpleRepresentation, Trades


@preset(
    'Zhang et al., "Theoretically principled trade-off between robustness and accuracy", ICML 2019',
    r"\min_\theta \sum_i \lambda_i \, \mathbb{E}_{P_i} \Big[ \ell(\theta, (x, y)) + \beta \max_{\|\delta\| \le "
    r"\epsilon} \mathrm{KL} \big( p_\theta(x) \,\|\, p_\theta(x + \delta) \big) \Big]",
    "Against an attack of a known epsilon, if accuracy without an attack matters too.",
)
class TRADES(Trades, Weighted, Served, Stepped):
    """FedAvg with a penalty on outputs that change in a ball (see :class:`wafl.objectives.Trades`)."""


@preset(
    'Chen et al., "CalFAT: Calibrated federated adversarial training with label skewness", NeurIPS 2022',
    r"\min_\theta \sum_i \lambda_i \, \mathbb{E}_{P_i} \Big[ -\log \frac{\pi_{iy} \, e^{s_y(x + \delta)}}"
    r"{\sum_c \pi_{ic} \, e^{s_c(x + \delta)}} \Big], \qquad \pi_{ic} = \frac{n_{ic}}{n_i}",
    "If clients have different classes and adversarial training is unstable.",
)
class CalFAT(Calibrated, Weighted, Served, Stepped):
    """Adversarial training of clients with different classes (see :class:`wafl.objectives.Calibrated`)."""


@preset(
    'Arjovsky et al., "Invariant risk minimization", 2019, IRMv1 with clients as environments',
    r"\min_\theta \sum_i \lambda_i \Big( f_i(\theta) + c \, \Big| \frac{d}{dw} f_i(w \cdot \theta) "
    r"\Big|_{w = 1}^2 \Big)",
    "If clients are domains, and a feature that predicts well in each of them may mislead in a new one.",
)
class IRM(Invariant, Weighted, Served, Stepped):
    """FedAvg with a penalty on outputs that a client would rescale (see :class:`wafl.objectives.Invariant`)."""


@preset(
    'Nguyen, Torr and Lim, "FedSR: A simple and effective domain generalization method for federated learning", '
    "NeurIPS 2022, with one spread for all representations",
    r"\min_\theta \sum_i \lambda_i \min_{r_i} \mathbb{E}_{P_i} \, \mathbb{E}_{z \sim N(h_\theta(x), \sigma^2 I)} "
    r"\Big[ \ell(\theta, (z, y)) + a \|z\|^2 + b \log \frac{p_\theta(z | x)}{r_i(z | y)} \Big], \qquad "
    r"r_i(z | y) = N(m_{iy}, s_{iy}^2)",
    "If clients are domains, the model is for a new domain, and a layer of it is a useful representation (`space`).",
)
class FedSR(SimpleRepresentation, Weighted, Served, Stepped):
    """FedAvg with a penalty on representations that are long or contain more than the class.

    See :class:`wafl.objectives.SimpleRepresentation`.
    """
