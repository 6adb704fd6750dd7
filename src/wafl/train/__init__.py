"""Train on clients, here or anywhere else: one round, from the loop to a client's step.

Read ``loop.py`` (the loop), ``server.py`` (the server's side of Algorithm 1), ``client.py`` (a client's side), and
``step.py`` (one step), in this order. Start with ``fit.py``; ``embedded.py`` has the clients in this process.
"""
