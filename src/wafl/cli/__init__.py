"""The command ``wafl``: what its commands share, tables, progress.

One file per command is in ``commands/``.
"""
