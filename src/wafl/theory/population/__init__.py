"""From clients to their population: what the next client may expect.

``next_client.py`` is the front door; ``intervals.py`` has the statistics, and ``levels.py`` the highest confidence
that few clients support.
"""
