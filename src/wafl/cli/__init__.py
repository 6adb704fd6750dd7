"""The command ``wafl``: one file per command."""
