"""Implement the commands; each module is loaded when one of its commands is called.

A new command is a function here and a line in ``commands.toml``. If the name of its module differs, add the module to
``MODULES`` in ``wafl.cli.main``.
"""
