"""Tools for operators of Flower: processes, TLS certificates and node keys, apps, deployments, simulations.

``guard.py`` decides which apps a node runs; ``supernode.py`` runs the node.
"""
