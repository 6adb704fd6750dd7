"""Define methods with a server that does more than average the clients' models."""

from wafl.local import Dynamic
from wafl.methods.preset import Stepped, Weighted, preset
from wafl.servers import Adam, Extrapolated, Masked, Momentum, Normalized, Yogi
from wafl.servers import Dynamic as DynamicServer
from wafl.servers.rescaled import Agreement, Epsilon


@preset(
    'Tenison et al., "Gradient masked averaging for federated learning", TMLR 2023',
    r"\theta \leftarrow \theta + m \odot \sum_i \lambda_i \Delta_i, \qquad m_j = 1 \text{ if } A_j \ge \tau "
    r"\text{ and } A_j \text{ otherwise}, \quad A_j = \Big| \sum_i \lambda_i \, \mathrm{sign} \, \Delta_{ij} \Big|",
    "If clients are domains, and the model is for a new domain: it learns what few clients share more slowly.",
)
class FedGMA(Weighted, Stepped, server=Masked):
    """FedAvg with smaller changes of parameters where clients disagree on the direction."""

    threshold: Agreement = Masked.threshold


@preset(
    'Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution for federated visual '
    'classification", 2019',
    r"v \leftarrow \beta v + (\bar\theta - \theta), \qquad \theta \leftarrow \theta + \eta v",
    "If the cohorts of successive rounds pull in different directions.",
)
class FedAvgM(Momentum, Weighted, Stepped):
    """FedAvg with momentum on the server."""


@preset(
    'Reddi et al., "Adaptive federated optimization", ICLR 2021',
    r"m \leftarrow \beta_1 m + (1 - \beta_1) \Delta, \quad v \leftarrow \beta_2 v + (1 - \beta_2) "
    r"\Delta^2, \quad \theta \leftarrow \theta + \eta \, \frac{m}{\sqrt v + \tau}, \quad \Delta = "
    r"\bar\theta - \theta",
    "If parameters need steps of different sizes, as in networks with rare features.",
)
class FedAdam(Adam, Weighted, Stepped):
    """FedAvg with Adam on the server."""


@preset(
    'Reddi et al., "Adaptive federated optimization", ICLR 2021',
    r"v \leftarrow v - (1 - \beta_2) \, \Delta^2 \, \mathrm{sign}(v - \Delta^2), \quad \text{otherwise as FedAdam}",
    "As FedAdam, if its step sizes change too fast.",
)
class FedYogi(Yogi, Weighted, Stepped):
    """FedAvg with Yogi on the server."""


@preset(
    'Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated optimization", NeurIPS 2020',
    r"\theta \leftarrow \theta + \tau \sum_i \lambda_i \frac{\theta_i - \theta}{\tau_i}, \qquad "
    r"\tau = \sum_i \lambda_i \tau_i, \qquad \tau_i = \text{local steps of client } i",
    "If clients take different numbers of local steps: FedAvg would favor those that take more.",
)
class FedNova(Weighted, Stepped, server=Normalized):
    """FedAvg in which more local steps give a client no more influence (see :class:`wafl.servers.Normalized`)."""


@preset(
    'Acar et al., "Federated learning based on dynamic regularization", ICLR 2021',
    r"\theta_i \leftarrow \arg\min_\vartheta f_i(\vartheta) - \langle g_i, \vartheta \rangle + "
    r"\tfrac{\alpha}{2} \|\vartheta - \theta\|^2, \quad g_i \leftarrow g_i - \alpha (\theta_i - \theta), \quad "
    r"h \leftarrow h - \alpha \sum_{i \in S} \lambda_i (\theta_i - \theta), \quad "
    r"\theta \leftarrow \bar\theta - h / \alpha",
    "If clients have different data, take many local steps, and can keep a vector between rounds; it sends "
    "no more than FedAvg.",
)
class FedDyn(Dynamic, Weighted, server=DynamicServer):
    """FedAvg with a penalty that changes in each round, so that clients agree on their common optimum."""


@preset(
    'Jhunjhunwala, Wang and Joshi, "FedExP: Speeding up federated averaging via extrapolation", ICLR 2023',
    r"\theta \leftarrow \theta + \eta \bar\Delta, \qquad \eta = \max \Big\{ 1, \frac{\sum_i \lambda_i "
    r"\|\Delta_i\|^2}{2 (\|\bar\Delta\|^2 + \epsilon)} \Big\}, \quad \bar\Delta = \sum_i \lambda_i \Delta_i",
    "If FedAvg is slow because the clients' updates cancel in the mean.",
)
class FedExP(Weighted, Stepped, server=Extrapolated):
    """FedAvg with a longer server step where updates differ (see :class:`wafl.servers.Extrapolated`)."""

    epsilon: Epsilon = Extrapolated.epsilon
