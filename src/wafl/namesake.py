"""Another project on PyPI, a chatbot called ``wafl``, installs a package of the same name as this one."""

from importlib.metadata import Distribution, distributions
from pathlib import Path

from wafl.base.describe import some
from wafl.base.errors import warn_user


def warn_of_namesake(site: Path) -> None:
    """Warn, once, which files in ``site/wafl`` belong to the other project, and what to do about it."""
    here = {package.name: package for package in distributions(path=[str(site)])}
    theirs, ours = (_files(here.get(name)) for name in ("wafl", "wafl-learn"))
    shared, alone = sorted(theirs & ours), sorted(theirs - ours)
    warn_user(
        f"two projects are installed into {site / 'wafl'}: wafl, a chatbot, and wafl-learn, which you are importing. "
        f"Files of wafl: {some(alone) or 'none'}; of both, where the one installed last has overwritten the other: "
        f"{some(shared) or 'none'}. All others are of wafl-learn. Keep them apart in two environments: "
        "pip uninstall wafl wafl-learn, then pip install wafl-learn",
        RuntimeWarning,
    )


def _files(package: Distribution | None) -> set[str]:
    files = [] if package is None else package.files or []
    return {str(file) for file in files if file.parts[0] == "wafl" and file.suffix == ".py"}
