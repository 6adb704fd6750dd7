"""Where metrics go in addition to ``metrics.jsonl``: TensorBoard, MLflow, Weights & Biases, each an extra.

One file each; ``base.py`` is what they share.
"""

import os
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from wafl.studies.trackers.base import Log, Tracker
from wafl.studies.trackers.mlflow import MLflowTracker
from wafl.studies.trackers.tensorboard import TensorBoardTracker
from wafl.studies.trackers.wandb import WandbTracker

if TYPE_CHECKING:
    from wafl.config.experiment import Trackers

__all__ = ["Log", "MLflowTracker", "TensorBoardTracker", "Tracker", "WandbTracker", "make_trackers"]


def make_trackers(trackers: "Trackers", folder: Path, method: str) -> list[Tracker]:
    """Make the trackers of one method, with files in the study's folder unless ``$MLFLOW_TRACKING_URI`` is set."""
    made: list[Tracker] = []
    about = folder / "about.json"  # by which a study that was removed and begun again in the same folder is another
    content = about.read_bytes() if about.is_file() else b""
    key = f"{sha256(str(folder.resolve()).encode() + content).hexdigest()}/{method}"
    if trackers.tensorboard:
        made.append(TensorBoardTracker(folder / "tensorboard" / method))
    if trackers.mlflow:
        uri = os.environ.get("MLFLOW_TRACKING_URI") or folder / "mlflow"
        made.append(MLflowTracker(trackers.project, uri, key=key))
    if trackers.wandb:
        made.append(WandbTracker(trackers.project, folder=folder, key=key, group=f"{folder.name}-{method}"))
    return made
