"""Implement a Flower server: the clients, their nodes, the queries and the replies.

``grid.py`` is the engine for the training loop.
"""
