"""Methods whose server does something else than to take the clients' mean."""

from typing import Any

from wafl.methods.preset import Stepped, Weighted, preset
from wafl.servers import Adam, Masked, Momentum, Yogi
from wafl.servers.masked import Agreement


@preset(
    'Tenison et al., "Gradient masked averaging for federated learning", TMLR 2023',
    r"\theta \leftarrow \theta + m \odot \sum_i \lambda_i \Delta_i, \qquad m_j = 1 \text{ if } A_j \ge \tau "
    r"\text{ and } A_j \text{ otherwise}, \quad A_j = \Big| \sum_i \lambda_i \, \mathrm{sign} \, \Delta_{ij} \Big|",
    "If clients are domains and a new domain is to come: what only some of them share is learned more slowly.",
)
class FedGMA(Weighted, Stepped):
    """FedAvg whose parameters move less the less the clients agree on the direction."""

    threshold: Agreement = Masked.threshold

    def parts(self) -> dict[str, Any]:
        return {"server": Masked(self.threshold)}


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
