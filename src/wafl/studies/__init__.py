"""Studies on disk, which survive anything and can be repeated: ``study.py`` trains one, ``folder.py`` is its folder."""
