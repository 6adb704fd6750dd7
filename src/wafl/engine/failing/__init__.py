"""Clients that fail on purpose, and rounds that survive it; ``wafl.rounds.admission`` decides which replies count."""
