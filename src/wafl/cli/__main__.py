"""``python -m wafl.cli``."""

from wafl.cli.main import app

app()
