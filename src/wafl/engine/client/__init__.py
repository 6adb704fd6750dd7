"""What a client does in a round, for many lanes at once: ``local.py`` is the round, ``step.py`` one step."""
