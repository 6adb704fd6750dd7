"""The command ``wafl``: what its commands share, tables, progress.

Each module in ``commands/`` has related commands.
"""
