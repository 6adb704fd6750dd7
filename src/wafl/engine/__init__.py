"""The loop that trains on clients: ``fit.py`` is the front door, ``trainer.py`` the loop, ``embedded.py`` clients."""
