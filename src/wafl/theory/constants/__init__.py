"""The Lipschitz constants of the paper's assumptions: closed forms, layer by layer, or estimates.

Every constant says how far it can be trusted.
"""
