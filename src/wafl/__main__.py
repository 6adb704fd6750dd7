"""Run the command as ``python -m wafl``."""

from wafl.cli.main import app

app(prog_name="wafl")
