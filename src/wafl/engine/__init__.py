"""The loop that trains on clients, here or anywhere else, and the embedded engine that answers it.

``fit.py`` is the front door, ``trainer.py`` the loop, ``embedded.py`` the clients at hand.
"""
