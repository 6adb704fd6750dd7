"""One file per command, each loaded when it is called.

A new command is a file here and a line in ``wafl.cli.main``.
"""
