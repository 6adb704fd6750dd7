"""Our own experiments that were not registered: read their numbers as hints."""
