"""For operators of Flower: certificates, keys, apps (``guard.py`` says which run), nodes, deployments, simulations."""
