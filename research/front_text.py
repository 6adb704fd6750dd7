"""Write the measured sentences of README.md from committed results: when to use WAFL, and the verdict on the paper.

``python -m research pages`` fills them in.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from typing import Any

from research import front_page
from research.experiment import ROOT
from research.leaderboard import page as leaderboard
from research.markdown import table
from research.promises import page as promises
from research.promises.verdict import verdicts
from research.registration import registered
from research.reproduction import page as reproduction
from research.statistics import mean_of

LEVEL = 1.96
"""The number of standard errors in half of a 95% interval of a share."""
GAMMA = 75.0
"""The gamma whose price is stated: the model at which WAFL's frontier bends."""
SINGLE = {"WAFL": ("wafl-inf", "wafl-2"), "FedPGM": ("fedpgm-inf", "fedpgm-2"), "FedAvg": ("decay", "decay")}
"""The families of each method that AutoAttack attacked, in l_inf and in l2."""
OF_MODEL = "clean accuracy of that model"
WIDTH = 140


def page() -> dict[str, str]:
    """Return the texts of README.md, by the name of their table."""
    numbers = json.loads(front_page.NUMBERS.read_bytes())["data"]["cifar10"]
    bullets = [_attacked(numbers), _promised(), _adversarial(numbers), _unseen(), _price(numbers)]
    points = "\n".join(wrapped(each, "- ") for each in bullets)
    read = wrapped(_how_to_read(numbers))
    return {"front": f"{points}\n\n{_autoattack(numbers)}\n\n{read}", "front-paper": wrapped(_paper())}


def wrapped(text: str, bullet: str = "") -> str:
    """Return a paragraph in lines of README's width."""
    words = " ".join(text.split())
    return textwrap.fill(
        words, WIDTH, initial_indent=bullet, subsequent_indent=" " * len(bullet), break_on_hyphens=False
    )


def share(percent: float, count: int) -> str:
    """Format a share in percent with half the width of its 95% interval (normal approximation) over this many trials.

    >>> share(50.0, 100)
    '50.0 ± 9.8%'
    """
    half = LEVEL * math.sqrt(percent * (100.0 - percent) / count)
    return f"{percent:.1f} ± {half:.1f}%"


def _lead(results: dict[str, Any], norm: str, rival: str) -> str:
    (row,) = (row for row in results["compared"] if (row["attack"], row["rival"]) == (norm, rival))
    return str(mean_of(row["means"]))


def _strongest(results: dict[str, Any], family: str, norm: str) -> str:
    row = _chosen(results, family)
    return share(row["accuracy"][norm], registered(front_page.NAME)[0]["test"]["autoattack_examples"])


def _chosen(results: dict[str, Any], family: str) -> dict[str, Any]:
    """Return the row of a family's model that tuning chose, which AutoAttack attacked."""
    (row,) = (row for row in results["autoattack"] if row["family"] == family)
    return row


def _autoattack(results: dict[str, Any]) -> str:
    """Return the table of single accuracies, which are under AutoAttack."""
    rows = [
        [method]
        + [
            cell
            for norm, family in zip(("inf", "2"), families, strict=True)
            for cell in (_strongest(results, family, norm), f"{_chosen(results, family)['accuracy']['clean']:.1f}%")
        ]
        for method, families in SINGLE.items()
    ]
    return table(["CIFAR-10", "AutoAttack, l_inf 8/255", OF_MODEL, "AutoAttack, l2 0.25", OF_MODEL], rows)


def _how_to_read(results: dict[str, Any]) -> str:
    """Return the caption of the table, and how to read the models of WAFL and FedPGM in l_inf."""
    examples = registered(front_page.NAME)[0]["test"]["autoattack_examples"]
    ours, theirs = (_chosen(results, SINGLE[name][0])["accuracy"] for name in ("WAFL", "FedPGM"))
    assert ours["clean"] > theirs["clean"], "neither model is better at both"
    assert ours["inf"] < theirs["inf"], "neither model is better at both"
    return f"""*Each model has the strength chosen in tuning. ± is half the width of a 95% interval over
    {examples:,} test images. In l_inf, FedPGM's model is ahead under attack and behind on clean images, so
    neither model is better at both.*"""


def _attacked(cifar: dict[str, Any]) -> str:
    return f"""**Use it against small changes in every input.** On CIFAR-10, at equal clean accuracy, WAFL is
    {_lead(cifar, "inf", "FedAvg")} points more accurate than tuned FedAvg under PGD in l_inf (8/255), and
    {_lead(cifar, "2", "FedAvg")} points in l2 (0.25). Here, each ± is half the width of a 95% interval over
    partitions."""


def _promised() -> str:
    about = registered("promises")[0]
    rows = [row for row in promises.read_opened()["rows"] if row["statement"] == about["primary"]]
    judged = verdicts(rows, about["verdict"]["level"])
    tested = [each for each in judged if each["method"] == "WAFL" and each["sealed"]]
    covered, sealed = (sum(each[key] for each in tested) for key in ("covered", "sealed"))
    expected = sum(each["expected"] * each["sealed"] for each in tested) / sealed
    smaller, tasks = promises.smaller(judged, about["primary"])
    return f"""**Use it to bound the loss of the next client.** We committed bounds for {tasks} tasks, and then
    evaluated {sealed:,} new clients without an attack. WAFL's bound held for
    {share(100.0 * covered / sealed, sealed)} of them (95% interval; [{100.0 * expected:.1f}%
    expected](docs/promises.md)), and is below FedAvg's on {smaller} of the tasks."""


def _adversarial(cifar: dict[str, Any]) -> str:
    return f"""**If you already use adversarial training, keep it.** At equal clean accuracy, WAFL's lead over
    FedPGM under PGD is {_lead(cifar, "inf", "FedPGM")} points in l_inf and {_lead(cifar, "2", "FedPGM")} points
    in l2."""


def _unseen() -> str:
    board = leaderboard.Board(json.loads((ROOT / "docs" / "leaderboard.json").read_bytes()), registered("natural")[0])
    ranks = leaderboard.average_ranks(board.board("shift"))
    return f"""**Do not expect it to help with unseen people and places.** WAFL's average rank on
    {len(board.counted)} shifted data sets is {ranks["WAFL"]:.1f} of {len(board.ranked)};
    [none](docs/leaderboard.md) ranks significantly above FedAvg ({ranks["FedAvg"]:.1f}). For a different kind of
    client, tune [weight decay](docs/unseen.md)."""


def _price(cifar: dict[str, Any]) -> str:
    models = {
        (family, row["partition"]): row["accuracy"]
        for family, size in (("wafl-inf", GAMMA), ("decay", 0.0))
        for row in cifar["rows"]
        if (row["family"], row["size"]) == (family, size) and not row["trial"]
    }
    partitions = sorted({partition for _, partition in models})

    cost = mean_of([models["decay", each]["clean"] - models["wafl-inf", each]["clean"] for each in partitions])
    gain = mean_of([models["wafl-inf", each]["inf"] - models["decay", each]["inf"] for each in partitions])
    return f"""**Do not use it if only clean accuracy matters.** With gamma {GAMMA:g}, WAFL is {cost} points less
    accurate on clean images than FedAvg without weight decay, and {gain} points more accurate under PGD in l_inf."""


def _paper() -> str:
    names: Sequence[str] = ("fig-attacked-share-cifar10-paper", "fig-attacked-share-cifar10-fair")
    numbers = {name: json.loads((ROOT / "docs" / "reproduction" / f"{name}.json").read_bytes()) for name in names}
    text = """As the paper claims, WAFL is more accurate under attack on MNIST and CIFAR-10 than FedAvg and DRFA
    (which gives clients with large losses more weight). We could not reproduce a general lead over FedPGM, a gain
    at the gammas of the paper's text, or its accuracies on new domains. With 80% of CIFAR-10's clients attacked
    (l_inf, 8/255), the paper reports 45% accuracy; we reach [[fig-attacked-share-cifar10-paper WAFL l_inf 0.8]]%
    with its settings (PGD with 10 steps, one seed), and [[fig-attacked-share-cifar10-fair wafl-l2 l_inf 0.8]]%
    (95% interval over three seeds) with a tuned l2 ball (PGD with 40 steps)."""
    return reproduction.with_numbers(" ".join(text.split()), numbers)
