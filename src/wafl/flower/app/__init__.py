"""Define the two Flower apps, and a strategy and a training step for your own app.

An app's ``pyproject.toml`` names ``server_app`` and ``client_app``.
"""
