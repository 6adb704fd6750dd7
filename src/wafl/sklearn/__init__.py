"""Estimators for scikit-learn that minimize the worst expected loss in a Wasserstein ball, and their exact solver.

Public: what is imported here.
"""

from wafl.sklearn.estimators import WassersteinClassifier, WassersteinRegressor

__all__ = ["WassersteinClassifier", "WassersteinRegressor"]
