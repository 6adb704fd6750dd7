"""How the clients of all runs become lanes of one batch; no number may depend on how they are put together."""
