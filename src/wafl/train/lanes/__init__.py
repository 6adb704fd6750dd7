"""How the clients of all runs become lanes of one batch: their order, memory, and steps captured on a GPU.

No number may depend on how lanes are put together.
"""
