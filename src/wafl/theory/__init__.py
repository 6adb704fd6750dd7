"""Compute constants, certificates, bounds and rates: the guarantees of the ball, in numbers.

``certificates/`` and ``phi/`` contain the proofs, ``paper/`` the paper's theorems, and ``population/`` statements
about the next client.
"""

from wafl.theory.calibration import Calibration, calibrate
from wafl.theory.certificates.certificate import Certificate, Certificates
from wafl.theory.certificates.certify import certify
from wafl.theory.constants.assumptions import Constants, constants
from wafl.theory.constants.constant import Constant
from wafl.theory.paper.convergence import client_drift, convergence, round_progress
from wafl.theory.paper.generalization import (
    Concentration,
    covering_radius,
    distance_to_client,
    distance_to_target,
    generalization_to_truth,
    robust_generalization,
)
from wafl.theory.paper.measured import ExcessRisk, GradientSpread, excess_risk, gradient_spread
from wafl.theory.paper.perturbations import inside_ball
from wafl.theory.paper.sandwich import excess_risk_sandwich, risk_spread
from wafl.theory.paper.theorem import Bound
from wafl.theory.population.next_client import NextClient, next_client
from wafl.theory.summary import Refusal, Summary, summarize

__all__ = [
    "Bound", "Calibration", "Certificate", "Certificates", "Concentration", "Constant", "Constants", "ExcessRisk",
    "GradientSpread", "NextClient", "Refusal", "Summary", "calibrate", "certify", "client_drift", "constants",
    "convergence", "covering_radius", "distance_to_client", "distance_to_target", "excess_risk", "excess_risk_sandwich",
    "generalization_to_truth", "gradient_spread", "inside_ball", "next_client", "risk_spread", "robust_generalization",
    "round_progress", "summarize",
]  # fmt: skip
