"""Estimators for scikit-learn of the least worst expected loss in a Wasserstein ball, and their exact solver."""

from wafl.sklearn.estimators import WassersteinClassifier, WassersteinRegressor

__all__ = ["WassersteinClassifier", "WassersteinRegressor"]
