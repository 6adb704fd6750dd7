"""Provide the command ``wafl``: shared parts of its commands, tables, progress.

Each module in ``commands/`` contains related commands.
"""
