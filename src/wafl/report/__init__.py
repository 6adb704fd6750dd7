"""What a study looks like: tables and figures."""
