"""The two Flower apps, and for an app of one's own a strategy and a training step.

``server_app`` and ``client_app`` are named by ``pyproject.toml`` of an app.
"""
