"""Methods whose clients take other local steps."""

from typing import Any, ClassVar

from wafl.local import ControlVariates, Prox
from wafl.methods.preset import About, Served, Weighted, preset


@preset
class FedProx(Prox, Weighted, Served):
    """FedAvg whose clients pay ``mu / 2 ||params - start||^2`` for leaving the server's model."""

    about: ClassVar = About(
        'Li et al., "Federated optimization in heterogeneous networks", MLSys 2020',
        r"\min_{\theta_i} f_i(\theta_i) + \frac{\mu}{2} \|\theta_i - \theta\|^2",
        "If clients take many local steps and drift apart.",
        place=22,
    )


@preset
class SCAFFOLD(Weighted, Served):
    """FedAvg with control variates: clients whose data differ no longer drift apart between rounds."""

    about: ClassVar = About(
        'Karimireddy et al., "SCAFFOLD: Stochastic controlled averaging for federated learning", ICML 2020',
        r"\theta_i \leftarrow \theta_i - \eta \, (\nabla f_i(\theta_i) - c_i + c)",
        "If clients whose data differ take many local steps, and can keep a vector between rounds.",
        place=23,
    )

    def parts(self) -> dict[str, Any]:
        return {"local": ControlVariates()}
