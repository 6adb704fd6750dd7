"""From clients to their population: ``next_client.py`` is the front door, ``intervals.py`` has the statistics."""
