"""A Flower server's side: who the clients are, which node holds whom, what is asked and what comes back.

``grid.py`` is the engine that the training loop sees.
"""
