"""Clients of another kind: a ball in the clients' metric against its rivals, with exactly solved linear models."""
