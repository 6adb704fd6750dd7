"""Four hospitals train together, each on its own SuperNode; a fifth asks what their models would do for it.

python examples/flower_hospitals/run.py [--folder DIR] [--rounds N]
"""

from __future__ import annotations

import argparse
import re
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import torch
from deployed import Deployed, find_proxy
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import wafl
from data import MAGNIFICATION, Hospital, federation, make_hospitals, score
from wafl.config.experiment import Experiment
from wafl.config.read import read_experiment
from wafl.flower.ops.app import write_app
from wafl.flower.ops.guard import app_digest
from wafl.flower.ops.loopback import ProgramError, RunHandle
from wafl.flower.ops.tls import make_certificates

EXPERIMENT = Path(__file__).with_name("experiment.toml")
DRAWS = range(20)
"""Seeds by which tumors are dealt out to the hospitals; the nodes get the first deal."""
TIMEOUT = 1800.0
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # four nodes share a machine; and other numbers of threads give other last bits
COLORS = re.compile(r"\x1b\[\d*m")
OURS = re.compile(r"(INFO|WARNING|ERROR) *: +(?P<said>\S.*)")
OTHER_SEED = re.compile(r"seed=[1-9]\d*\), round \d+: loss [\d.]+(, radius \S+)?$")
CASES = (MAGNIFICATION[-1], 1.0, 0.8)
"""The magnification of the fifth hospital's microscope: as it is, if it were right, and if it erred the other way."""

Models = dict[str, list[wafl.Run]]
"""By method, one model per seed."""
Scores = dict[str, list[tuple[float, float]]]
"""By hospital, accuracy and loss of one model each."""
console = Console(highlight=False)


def main(argv: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--folder", type=Path, help="where everything goes, new or empty (default: a temporary one)")
    options.add_argument("--rounds", type=int, help="of each method (default: 8)")
    given = options.parse_args(argv)
    try:
        changes = [] if given.rounds is None else [f"schedule.rounds={given.rounds}"]
        experiment, folder = read_experiment(EXPERIMENT, changes), new_folder(given.folder)
        hospitals = make_hospitals(DRAWS[0])
        deploy(folder, experiment, hospitals[:4])
        report(folder / "run", experiment, hospitals)
    except KeyboardInterrupt:
        print("\nstopped, with all that was started", file=sys.stderr)
        return 130
    except (ValueError, OSError, ProgramError) as error:
        print(error, file=sys.stderr)
        return 1
    console.print(f"\nModels, logs and certificates are in {folder}", soft_wrap=True)
    return 0


def new_folder(wanted: Path | None) -> Path:
    folder = Path(mkdtemp(prefix="hospitals-")) if wanted is None else wanted.resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} exists and is not an empty folder: choose another with --folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def deploy(folder: Path, experiment: Experiment, hospitals: Sequence[Hospital]) -> None:
    """Train on Flower, over TLS, with nodes that know the app by its digest, and the SuperLink them by their keys.

    With nginx, they reach the SuperLink through the proxy of a deployment, and can do what nodes need, nothing else.
    """
    for hospital in hospitals:
        (folder / hospital.name).mkdir()
        np.savez(folder / hospital.name / f"{hospital.name}.npz", **hospital.arrays())
    certificates = make_certificates(folder / "certificates", nodes=[hospital.name for hospital in hospitals])
    write_app(folder / "app", experiment)
    allowed, proxy = [app_digest(folder / "app")], find_proxy()
    flower = Deployed(folder / "flower", certificates=certificates, environment=ONE_THREAD, proxy=proxy)
    with flower as loopback:
        door = f"nodes reach it at {loopback.door}" if proxy else "without a proxy, because there is no nginx here"
        console.print(f"A SuperLink at {loopback.address}, {door}; its nodes:", soft_wrap=True)
        for hospital in hospitals:
            data = folder / hospital.name
            loopback.add_node(hospital.name, {"data": str(data)}, key=hospital.name, allowed=allowed)
            console.print(f"  {hospital.name}, with {len(hospital.y)} tumors in {data}", soft_wrap=True)
        loopback.wait_for_nodes(len(hospitals))
        run = loopback.submit(folder / "app", {"folder": str(folder / "run")})
        console.print(f"Round by round (of {len(experiment.seeds)} seeds, which train together, the first):")
        for line in said(run):
            console.print(f"  {line}", soft_wrap=True, markup=False)
        if (status := run.wait(TIMEOUT)) != "finished:completed":
            raise ProgramError(f"the run is {status}: see the logs in {loopback.folder}")


def said(run: RunHandle) -> Iterator[str]:
    """What our ServerApp logs while it runs."""
    shown, ended, deadline = 0, False, time.monotonic() + TIMEOUT
    while not ended and time.monotonic() < deadline:
        ended = run.done()
        lines = COLORS.sub("", run.log()).splitlines(keepends=True)
        whole = [line.rstrip() for line in lines if ended or line.endswith("\n")]
        for line in whole[shown:]:
            if (result := OURS.match(line)) and not OTHER_SEED.search(line) and "`" not in line:
                yield result["said"]
        shown = len(whole)
        time.sleep(0.5)


def report(folder: Path, experiment: Experiment, hospitals: Sequence[Hospital]) -> None:
    """What the nodes' models are worth, whether one process gives the same, and how other draws come out."""
    warnings.simplefilter("ignore", wafl.ConcavityWarning)
    torch.set_num_threads(1)
    seeds = experiment.seeds
    deployed, here = saved_models(folder, experiment), train_here(experiment, hospitals, seeds)
    title = f"Accuracy in % and loss: these hospitals, mean ± standard deviation over {len(seeds)} seeds"
    console.print(table(title, {name: scores(runs, [hospitals] * len(seeds)) for name, runs in deployed.items()}))
    radii = [f"{last_radius(runs):.2f} ({name})" for name, runs in deployed.items() if name != "FedAvg"]
    console.print(f"Radius of the ball in the last round, in standard units: {', '.join(radii)}", soft_wrap=True)
    equal = all(same(run, other) for name in here for run, other in zip(here[name], deployed[name], strict=True))
    console.print(f"Trained in one process, the models are {'' if equal else 'NOT '}the same, bit for bit\n")
    draws = [make_hospitals(seed) for seed in DRAWS]
    trained = [train_here(experiment, draw, seeds[:1]) for draw in draws]
    result = {name: scores([models[name][0] for models in trained], draws) for name in deployed}
    console.print(table(f"The same in one process, over {len(DRAWS)} ways to deal the tumors out", result))
    gains = [f"{paired(result[name], result['FedAvg'])} ({name})" for name in result if name != "FedAvg"]
    console.print(f"Points over FedAvg at hospital 5, paired, ± standard error: {', '.join(gains)}", soft_wrap=True)


def saved_models(folder: Path, experiment: Experiment) -> Models:
    """As the ServerApp saved them: the first seed's model in the method's folder, the others below it."""
    later = [f"seed-{seed}" for seed in experiment.seeds[1:]]
    folders = {"FedAvg": "fedavg", **{wafl_name(gamma): f"wafl-gamma={gamma}" for gamma in gammas(experiment)}}
    return {name: [wafl.load_run(folder / path / seed) for seed in ("", *later)] for name, path in folders.items()}


def train_here(experiment: Experiment, hospitals: Sequence[Hospital], seeds: Sequence[int]) -> Models:
    """The same training in this process."""
    clients = federation(hospitals[:4])
    model, schedule = wafl.models.mlr(clients), experiment.schedule.model_dump(exclude_none=True)
    decay = experiment.methods[0].weight_decay
    plain = wafl.sweep(model, clients, wafl.FedAvg(), {"seed": seeds}, **schedule, weight_decay=decay)
    count, wanted = len(seeds), gammas(experiment)
    robust = wafl.sweep(model, clients, wafl.WAFL(), {"gamma": wanted, "seed": seeds}, **schedule)
    parts = [robust[index * count : (index + 1) * count] for index in range(len(wanted))]  # the seed varies fastest
    return {"FedAvg": plain, **dict(zip(map(wafl_name, wanted), parts, strict=True))}


def gammas(experiment: Experiment) -> list[float]:
    return experiment.methods[1].model_dump()["gamma"]


def wafl_name(gamma: float) -> str:
    return f"WAFL, gamma {gamma:g}"


def last_radius(runs: Sequence[wafl.Run]) -> float:
    return statistics.fmean(run.history[-1].achieved_radius for run in runs)


def same(run: wafl.Run, other: wafl.Run) -> bool:
    return all(bool((run.params[name] == other.params[name]).all()) for name in run.params)


def scores(runs: Sequence[wafl.Run], draws: Sequence[Sequence[Hospital]]) -> Scores:
    """Each model at the four hospitals that trained it, on held-out tumors, and at the fifth, on all of its tumors."""
    result: Scores = {}
    for run, (*four, fifth) in zip(runs, draws, strict=True):
        for hospital, magnification in zip(four, MAGNIFICATION[:4], strict=True):
            part = hospital.arrays()
            result.setdefault(row(hospital, magnification), []).append(score(run, part["x_test"], part["y_test"]))
        for case in CASES:
            result.setdefault(row(fifth, case), []).append(score(run, fifth.seen(case), fifth.y))
    return result


def row(hospital: Hospital, magnification: float) -> str:
    return f"{hospital.name.rpartition('-')[2]}, x {magnification:.1f}"


def paired(robust: Scores, plain: Scores) -> str:
    """By how many points one is better at the fifth hospital as it is."""
    (name,) = (name for name in robust if name.endswith(f"{CASES[0]}"))
    gains = [ours[0] - theirs[0] for ours, theirs in zip(robust[name], plain[name], strict=True)]
    return f"{statistics.fmean(gains):+.1f}±{statistics.stdev(gains) / len(gains) ** 0.5:.1f}"


def table(title: str, result: Mapping[str, Scores]) -> Table:
    shown = Table("hospital", title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for name in result:
        shown.add_column(name, justify="right")
    for name in next(iter(result.values())):
        cells = [spread(method[name]) for method in result.values()]
        shown.add_row(name, *cells, style="bold" if name.endswith(f"{CASES[0]}") else "")
    return shown


def spread(values: Sequence[tuple[float, float]]) -> str:
    (accuracy, its_std), (loss, loss_std) = (
        (statistics.fmean(part), statistics.stdev(part)) for part in zip(*values, strict=True)
    )
    return f"{accuracy:.1f}±{its_std:.1f}  {loss:.2f}±{loss_std:.2f}"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends all that was started, as Ctrl-C does
    sys.exit(main())
