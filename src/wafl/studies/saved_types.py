"""The types of what a study's files hold, which are checked when they are read."""

from collections.abc import Mapping
from typing import Any

from wafl.base.json_types import check_types
from wafl.evaluation.entry import PARTS

ABOUT: dict[str, Any] = {
    "format?": int,
    "started?": str,
    "config?": str,
    "source?": str | None,
    "packages?": dict[str, str | None],
    "fingerprint?": dict[str, str],
}

SPREAD: dict[str, Any] = {"mean": float, "std": float, "seeds": list[float]}
UNSEEN: dict[str, Any] = {
    **{part: {**SPREAD, "interval": tuple[float, float], "worst_tenth": SPREAD} for part in PARTS},
    "out_of_sample_gap": SPREAD,
    "participation_gap": SPREAD,
}
RESULTS: dict[str, Any] = {
    "attack?": str | None,
    "seeds": list[int],
    "measure": str,
    "methods": dict[str, dict[str, Any]],
    "done": list[str],
    "finished": bool,
    "metrics?": str,
}
PRIVACY: dict[str, Any] = {
    "epsilon": float, "epsilon_of_all_seeds": float, "delta": float, "noise_multiplier": float, "clip_norm": float,
}  # fmt: skip
ROW: dict[str, Any] = {"clean": SPREAD, "worst_client": SPREAD, "seconds": float, "generalization?": UNSEEN}


def check_results(results: Mapping[str, Any]) -> None:
    """Refuse a ``results.json`` in which a value is missing or has another type; a ValueError names the first one."""
    check_types(results, RESULTS)
    for label, row in results["methods"].items():
        where = f"methods.{label}"
        check_types(row, {"diverged?": dict[str, str], "left_out?": dict[str, Any], "untested?": list[str]}, where)
        chosen = row.get("chosen", {})
        check_types(chosen, {seed: {"radius": float, "why": str} for seed in chosen}, f"{where}.chosen")
        if "privacy" in row:
            check_types(row["privacy"], PRIVACY, f"{where}.privacy")
        absent = row.get("left_out", {})
        check_types(absent, {name: {"rounds": int, "why": str} for name in absent}, f"{where}.left_out")
        if "clean" in row:  # tested
            check_types(row, {**ROW, "attacked": dict[str, Any]}, where)
            check_types(row["attacked"], dict.fromkeys(row["attacked"], SPREAD), f"{where}.attacked")
