"""The Lipschitz constants of the paper's assumptions; each says how far it can be trusted."""
