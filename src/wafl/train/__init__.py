"""One round, from the loop to a client's step: training on clients, here or anywhere else.

Read ``loop.py`` (the loop), ``server.py`` (the server's side of Algorithm 1), ``client.py`` (a client's side), and
``step.py`` (one step), in this order. ``fit.py`` is the front door; ``embedded.py`` has the clients at hand.
"""
