"""Compute the Lipschitz constants of the paper's assumptions: in closed form, layer by layer, or as estimates.

Every constant states whether it is exact, a bound or an estimate.
"""
