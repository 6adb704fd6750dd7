"""Tune, train and test a part of an experiment, method by method; finished methods are saved and do not run again."""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from research import domains
from research.jobs import Say, each
from research.reproduction.draw import draw, of_the_paper
from research.reproduction.experiments import Part
from research.reproduction.measure import measured
from research.reproduction.placement import Placement
from wafl.attacks import Attack
from wafl.base.errors import ConfigError, DivergedError, TrainingWarning
from wafl.base.files import write_whole
from wafl.config.experiment import Experiment
from wafl.config.method_keys import MethodTable, OwnMethod, Schedule
from wafl.config.own_code import imports
from wafl.config.plan import make_entry
from wafl.config.read import read_experiment
from wafl.data.named.cache import data_folder
from wafl.studies.folder import StudyFolder, provenance, to_toml
from wafl.studies.study import Study
from wafl.studies.tune import TunedExperiment

MAKER = ("command", "python", "packages", "machine")
"""The keys that say how and where numbers were made."""
JUDGED: dict[str, Attack] = {"placement": Placement(1.0)}
"""The shifts of the held-out examples that judge trials, by name."""


def reproduce(
    part: Part, output: Path, work: Path, say: Say = print, methods: Sequence[str] | None = None, jobs: int = 1
) -> Path | None:
    """Make a part's numbers and picture in ``output``, from trials kept in ``work``; None if its data are not here."""
    numbers = output / f"{part.label}.json"
    kept = _kept(numbers, part)
    if kept is None and (missing := missing_data(part)):
        say(f"{part.label}: not run, as {missing} is not here (`wafl data list`)")
        return None
    about = _about(part)
    kept = kept or {**about, "chosen": {}, "rows": [], "unfinished": _names(part)}
    wanted = [name for name in kept["unfinished"] if methods is None or name in methods]
    if wanted:
        say(f"{part.label}: {', '.join(wanted)}")
    for name, made in each(partial(_made, part, work / part.label), wanted, jobs):
        say(f"{part.label}: {name} is done")
        _add(kept, made, part, name)
        _note_maker(kept, about, name)
        output.mkdir(parents=True, exist_ok=True)
        write_whole(numbers, json.dumps(kept, indent=1).encode())
    picture = draw(kept, numbers.with_suffix(".png"))
    if part.figure == "attacked" and (six := of_the_paper(kept)) is not None:
        draw(six, numbers.with_name(f"{numbers.stem}-six.png"))
    rest = f"; not made: {', '.join(kept['unfinished'])}" if kept["unfinished"] else ""
    say(f"{part.label}: {numbers}" + ("" if picture is None else f" and {picture}") + rest)
    return numbers


def _names(part: Part) -> list[str]:
    """Return the names of the pieces of work: the methods, or the table of a partition."""
    return ["partition"] if part.figure == "partition" else [method.label for method in part.experiment.methods]


def _add(kept: dict[str, Any], made: Mapping[str, Any], part: Part, name: str) -> None:
    """Add a method's results to the others, in the order of the file."""
    order = _names(part)
    kept |= {key: value for key, value in made.items() if key not in ("chosen", "rows")}
    kept["chosen"] |= made["chosen"]
    kept["rows"] = sorted([*kept["rows"], *made["rows"]], key=lambda row: order.index(row.get("entry", name)))
    kept["unfinished"] = [other for other in kept["unfinished"] if other != name]


def _note_maker(kept: dict[str, Any], about: Mapping[str, Any], name: str) -> None:
    """Note if a method was made by another command, version or machine than the start of the file."""
    maker = {key: about[key] for key in MAKER}
    others = kept.get("added", [])
    if not others and all(kept[key] == maker[key] for key in MAKER):
        return
    same = next((other for other in others if all(other[key] == maker[key] for key in MAKER)), None)
    if same is None:
        kept["added"] = [*others, {"methods": [name], **maker}]
    else:
        same["methods"].append(name)


def missing_data(part: Part) -> str | None:
    """Return the first data set of a part that is not in its data folder."""
    source = part.experiment.data.source
    wanted = domains.data_sets(source) if source is not None else [part.experiment.data.dataset]
    return domains.missing(wanted, data_folder(part.experiment.data.data_dir))


def digest(part: Part) -> str:
    """Return the digest of a file's content about a part, which identifies saved numbers."""
    return sha256(json.dumps(part.content, sort_keys=True).encode()).hexdigest()


def _kept(path: Path, part: Part) -> dict[str, Any] | None:
    """Return the numbers in a file, which must have been made for exactly this part; None if there is no file."""
    if not path.is_file():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    if content.get("digest") == digest(part):
        return content
    raise ConfigError(f"{path} has numbers of another version of this experiment: remove it, or give another --output")


def _made(part: Part, folder: Path, name: str) -> dict[str, Any]:
    """Tune, train and test one method in its own folder, and return its results."""
    if part.figure == "partition":
        return {"chosen": {}, "rows": domains.statistics(part.experiment)}
    work = folder / name
    work.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)  # swept gammas go below the concavity limit on purpose
        try:
            experiment, chosen = _tuned(part, name, work)
        except DivergedError as error:  # every trial
            return {"chosen": {}, "rows": _untuned(part, name, str(error))}
        path = work / "study"
        if path.exists():
            _refuse_code(StudyFolder.existing(path).experiment(), part, path)
        study = Study.resume(path, trust=True) if path.exists() else Study.create(experiment, path)
        try:
            results = study.run()
        except DivergedError:  # every run, each of which has said why: rows of their own
            results = study.folder.read_results()
        (entry,) = study.plan.entries
        match = part.figure == "gamma" and part.protocol == "paper"
        target, condition = domains.target_of(part.experiment.data.source), part.figure == "condition"
        rows = measured(study, entry, part.tests, target, match=match, condition=condition)
    assert study.plan.federation is not None
    length = part.experiment.attack.epsilon * math.prod(study.plan.federation.input_shape) ** 0.5
    about = {"clients": results["clients"], "unit": results["unit"], "attack_length": length}
    return {**about, "chosen": {name: chosen} if chosen else {}, "rows": rows}


def _about(part: Part) -> dict[str, Any]:
    made = {key: value for key, value in provenance().items() if key != "format"}
    scale = "" if part.scale == "full" else f" --scale {part.scale}"
    device = "" if part.experiment.device == "cpu" else f" --device {part.experiment.device}"
    made["command"] = f"python -m research reproduce {part.number} --protocol {part.protocol}{scale}{device}"
    return {
        "digest": digest(part),
        "name": part.name,
        "part": part.part,
        "protocol": part.protocol,
        "scale": part.scale,
        "title": part.title,
        "data": part.experiment.data.source or part.experiment.data.dataset,
        "figure": part.figure,
        "seeds": part.experiment.seeds,
        "tests": part.tests,
        **made,
    }


def _tuned(part: Part, name: str, work: Path) -> tuple[Experiment, dict[str, Any]]:
    """Return the experiment of one method, with its tuned setting, if it is tuned; attacks come after training."""
    plain = work / "experiment.toml"
    if not plain.is_file():
        write_whole(plain, to_toml(alone(part.experiment, name)).encode())
    _refuse_code(read_experiment(plain), part, plain)
    source, chosen = plain, dict[str, Any]()
    if part.experiment.tune is not None:
        source = plain.with_suffix(".tuned.toml")
        if not source.is_file():
            attack = None if part.judged is None else JUDGED[part.judged]
            TunedExperiment.create(plain, output=source, attack=attack).run()
        trials = json.loads(plain.with_suffix(".trials.json").read_text(encoding="utf-8"))
        tuned = trials["methods"][name]
        chosen = {"setting": tuned["best"], "why": tuned["why"], "by": trials["measure"]}
    experiment = read_experiment(source, ["attack.kind=none"])
    _refuse_code(experiment, part, source)
    return experiment, chosen


def _refuse_code(experiment: Experiment, part: Part, where: Path) -> None:
    """Raise ConfigError if files in the working folder name code that the experiment does not name."""
    for name in set(imports(experiment)) - set(imports(part.experiment)):
        raise ConfigError(f"{where} names code, {name}, which {part.name} does not: remove it, or give another --work")


def _untuned(part: Part, name: str, reason: str) -> list[dict[str, Any]]:
    """Return the rows of a method of which no trial could be trained to the end."""
    method = next(method for method in part.experiment.methods if method.label == name)
    entry = make_entry(method, part.experiment.schedule)
    about = {"label": entry.title, "entry": name, "method": entry.method.name}
    return [{**about, "seed": seed, "diverged": reason} for seed in part.experiment.seeds]


def alone(experiment: Experiment, name: str) -> Experiment:
    """Return the experiment with one of its methods, and that method's search."""
    (method,) = (method for method in experiment.methods if method.label == name)
    tune = experiment.tune
    if tune is not None:
        keys = {*Schedule.model_fields, *_searched(method, experiment)}
        tune = tune.model_copy(update={"space": {key: tune.space[key] for key in tune.space if key in keys}})
    return experiment.model_copy(update={"methods": [method], "tune": tune})


def _searched(method: MethodTable, experiment: Experiment) -> list[str]:
    """Return the searchable options of a method: those with a value, or its function's arguments."""
    if isinstance(method, OwnMethod):
        return list(method.options)
    declared = make_entry(method, experiment.schedule).method.declared()
    return [option for option, (_, value) in declared.items() if value is not None]
