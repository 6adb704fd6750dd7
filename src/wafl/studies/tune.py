"""Tune an experiment: its trials, the results saved on interruption, and the resulting file."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from wafl.attacks import Attack
from wafl.base.describe import describe
from wafl.base.errors import ConfigError
from wafl.base.files import read_limited, sealed, unsealed, write_whole
from wafl.base.options import options_of
from wafl.callbacks import Callbacks
from wafl.config import experiment as config
from wafl.config.keys import Section
from wafl.config.method_keys import PART_TABLES, MethodTable, OwnMethod
from wafl.config.plan import Entry, Plan, embedded, make_plan
from wafl.config.read import apply_change, read_experiment
from wafl.parts.schedule import Schedule
from wafl.studies.study import make_callbacks
from wafl.train.loop import Trainer
from wafl.tuning.judging import Goal, Trial, Tuning, hold_out
from wafl.tuning.space import Candidate
from wafl.tuning.tune import Search


@dataclass(frozen=True)
class TunedExperiment:
    """An experiment file with changes, its trials, the tuned file to write, and trials of earlier runs."""

    source: Path
    changes: tuple[str, ...]
    output: Path
    plan: Plan
    search: Search
    known: dict[str, list[Trial]] = field(default_factory=dict[str, list[Trial]])

    @classmethod
    def create(
        cls, source: Path, changes: Sequence[str] = (), output: Path | None = None, attack: Attack | None = None
    ) -> Self:
        """Prepare tuning, checked before any work and without overwriting files.

        The output is by default ``<name>.tuned.toml``.
        """
        output = output or source.with_suffix(".tuned.toml")
        if output.exists():
            raise FileExistsError(f"{output} exists already: choose another --output, or remove it")
        if not output.parent.is_dir():
            raise FileNotFoundError(f"{output.parent} is not a folder: --output must be a file in one that exists")
        plan = make_plan(read_experiment(source, changes), source.parent)
        tuning = cls(source, tuple(changes), output, plan, make_search(plan, attack))
        return replace(tuning, known=tuning._read_known())

    @property
    def trials_file(self) -> Path:
        """The file of all trials, written after each method."""
        return self.output.with_name(self.output.stem.removesuffix(".tuned") + ".trials.json")

    def run(self, callbacks: Callbacks = ()) -> Tuning:
        """Run the remaining trials, and write the tuned experiment; return all trials and choices."""
        done = dict(self.known)

        def keep(name: str, trials: list[Trial]) -> None:
            done[name] = trials
            self._write_trials(done)

        # Where the experiment ends a run early, a trial ends early too: by the held-out examples.
        early, judges = self.plan.experiment.early_stopping is not None, self.search.goal.held_out.judges
        stopping = make_callbacks(self.plan.experiment, judges) if early else []
        tuning = self.search.run([*stopping, *callbacks], self.known, keep)
        self._write_trials(tuning.trials, tuning)
        text = self.source.read_text(encoding="utf-8-sig")
        write_whole(self.output, tuned_toml(text, self.changes, self.plan.experiment, tuning).encode())
        return tuning

    def _digest(self) -> str:
        """Return the digest that saved trials must match."""
        about = describe([self.plan.experiment.model_dump(), self.search.settings, self.search.words()])
        return sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()

    def _write_trials(self, trials: Mapping[str, list[Trial]], tuning: Tuning | None = None) -> None:
        methods: dict[str, Any] = {}
        for name, listed in trials.items():
            rows = [{"setting": each.setting, "value": each.value, "diverged": each.diverged} for each in listed]
            methods[name] = {"trials": describe(rows)}
        for name, best in (tuning.best if tuning is not None else {}).items():
            methods[name] |= {"best": describe(best.setting), "why": best.why, "edges": list(best.edges)}
        content = {"experiment": self._digest(), "measure": self.search.words(), "methods": methods}
        write_whole(self.trials_file, sealed(content))

    def _read_known(self) -> dict[str, list[Trial]]:
        """Return the finished methods' trials, if tuning the same experiment was interrupted."""
        if not self.trials_file.exists():
            return {}
        try:
            content = unsealed(read_limited(self.trials_file))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.trials_file} cannot be read: {error}. Remove it to try all again") from error
        if content["experiment"] != self._digest():
            raise FileExistsError(
                f"{self.trials_file} contains trials of a different experiment or version: choose another --output, "
                "or remove it"
            )
        return {
            name: [
                Trial(setting, row["value"], row["diverged"])
                for setting, row in zip(self.search.settings[name], rows["trials"], strict=True)
            ]
            for name, rows in content["methods"].items()
        }


def make_search(plan: Plan, attack: Attack | None = None) -> Search:
    """Return the search of an experiment, from its section ``tune``; ``attack`` replaces its attack."""
    experiment = plan.experiment
    options = experiment.tune or config.Tune()
    if plan.federation is None:
        raise ConfigError("tuning needs the clients' examples here, but with engine = 'flower' they are on nodes")
    split = hold_out(plan.federation, options.held_out, options.share, options.seed)
    clients = embedded(experiment, split.train)
    goal = Goal(
        split,
        options.metric,
        attack or plan.attack,
        options.attacked or [0.0, *(share for share in experiment.evaluation.attacked if share > 0)],
        options.seed,
        clients.device,
    )
    candidates = [
        _candidate(entry, method, _most_rounds(method, experiment.schedule.rounds, options.rounds))
        for entry, method in zip(plan.entries, experiment.methods, strict=True)
    ]
    space = {name: _given(values) for name, values in options.space.items()}
    trainer = Trainer(plan.model, clients, experiment.model.loss, None)
    try:
        return Search(candidates, space, options.trials, trainer, goal, options.seed, options.seeds)
    except ValueError as error:
        raise ConfigError(f"tune: {error}") from error


def _most_rounds(method: config.AnyMethod, common: int | None, most: int | None) -> int | None:
    """Return the maximum rounds of a method's trials, scaled if the method has its own rounds, such as AFL."""
    if most is None or common is None or method.rounds is None:
        return most
    return max(1, round(method.rounds * min(1.0, most / common)))


def _candidate(entry: Entry, method: config.AnyMethod, most_rounds: int | None) -> Candidate:
    """Return a method of an experiment, with the file's swept values as the choices."""
    firsts = {name: values[0] for name, values in entry.grid.items()}
    schedule = {**entry.schedule, **{name: value for name, value in firsts.items() if name in options_of(Schedule)}}
    if most_rounds is not None:
        schedule["rounds"] = min(schedule["rounds"], most_rounds)
    arguments = {**method.options, **firsts} if isinstance(method, OwnMethod) else {}
    arguments = {name: value for name, value in arguments.items() if name not in options_of(Schedule)}
    writable = set(type(method).model_fields).union(arguments, *part_options(method).values())
    return Candidate(entry.name, entry.method, schedule, entry.grid, entry.make, arguments, writable)


def _given(values: config.Between | list[Any]) -> Sequence[Any]:
    """Return a range as a pair, or a list of values, with the word inf converted to infinity."""
    if isinstance(values, config.Between):
        return values.low, values.high
    return [math.inf if value == "inf" else value for value in values]


def tuned_toml(text: str, changes: Sequence[str], experiment: config.Experiment, tuning: Tuning) -> str:
    """Return the text of an experiment file with its ``key=value`` changes and each method's chosen values."""
    import tomlkit

    content = tomlkit.parse(text)
    for change in changes:
        apply_change(content, change)
    _set(content, "name", f"{experiment.name}-tuned")
    tables: Any = content["methods"]
    for method, table in zip(experiment.methods, tables, strict=True):
        best = tuning.best.get(method.label)
        for name, value in ({} if best is None else best.setting).items():
            _set(_table_with(name, method, table), name, value)
    return f"# Tuned by {tuning.measure}.\n\n{tomlkit.dumps(content)}"


def part_options(method: MethodTable) -> dict[str, set[str]]:
    """Return the options that a file can set in the tables of a method's parts, except your own parts."""
    parts = {slot: part for slot in PART_TABLES if isinstance(part := getattr(method, slot, None), Section)}
    return {slot: set(type(part).model_fields) - {"kind", "options"} for slot, part in parts.items()}


def _table_with(name: str, method: MethodTable, table: Any) -> Any:
    """Return the table of an option: the method's, its function's arguments, or one of its parts'."""
    if name in type(method).model_fields:
        return table
    if isinstance(method, OwnMethod):
        return table["options"]
    return next(table[slot] for slot, names in part_options(method).items() if name in names)


def _set(table: Any, name: str, value: Any) -> None:
    from tomlkit.items import InlineTable

    before = table.get(name)
    table[name] = value
    if not isinstance(table, InlineTable):  # inline tables cannot contain comments
        table[name].comment("tuned" if before is None else f"tuned, from {before}")
