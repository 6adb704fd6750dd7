"""The embedded engine: local work, lanes, and the loop that trains."""
