"""What knows no client: models as pure functions, losses, norms, random draws, checks, files."""
