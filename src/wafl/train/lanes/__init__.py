"""Turn the clients of all runs into lanes of one batch: their order, memory, and captured steps on a GPU.

No number may depend on the arrangement of lanes.
"""
