"""Warn about another project on PyPI, a chatbot, that installs a package named ``wafl``, too."""

from pathlib import Path

from wafl.base.errors import warn_user


def warn_of_namesake(site: Path) -> None:
    """Warn once that two projects share the folder ``site/wafl``, and name the remedy."""
    warn_user(
        f"two projects are installed into {site / 'wafl'}: wafl, a chatbot, and wafl-learn, which you are importing. "
        "Where both have a file, the one installed last has overwritten the other's. Keep them apart in two "
        "environments: pip uninstall wafl wafl-learn, then pip install wafl-learn",
        RuntimeWarning,
    )
