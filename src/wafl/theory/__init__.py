"""Constants, certificates, bounds and rates: what the ball guarantees, in numbers.

``certificates/`` and ``phi/`` prove, ``paper/`` states the paper's theorems, ``population/`` is about the next client.
"""

from wafl.theory.calibration import Calibration, calibrate
from wafl.theory.certificates.certificate import Certificate, Certificates
from wafl.theory.certificates.certify import certify
from wafl.theory.constants.assumptions import Constants, constants
from wafl.theory.constants.constant import Constant
from wafl.theory.paper.convergence import convergence
from wafl.theory.paper.generalization import (
    Concentration,
    covering_radius,
    distance_to_client,
    distance_to_target,
    excess_risk_sandwich,
    generalization_to_truth,
    robust_generalization,
)
from wafl.theory.paper.perturbations import inside_ball
from wafl.theory.paper.theorem import Bound
from wafl.theory.population.next_client import NextClient, next_client
from wafl.theory.summary import Refusal, Summary, summarize

__all__ = [
    "Bound", "Calibration", "Certificate", "Certificates", "Concentration", "Constant", "Constants", "NextClient",
    "Refusal", "Summary", "calibrate", "certify", "constants", "convergence", "covering_radius", "distance_to_client",
    "distance_to_target", "excess_risk_sandwich", "generalization_to_truth", "inside_ball", "next_client",
    "robust_generalization", "summarize",
]  # fmt: skip
