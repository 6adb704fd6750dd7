"""The two Flower apps that ``pyproject.toml`` of an app names, and for one's own a strategy and a training step."""
