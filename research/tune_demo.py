"""Choose the settings of ``wafl run`` as ``wafl tune`` does: the same number of trials for every method.

    python -m research tune-demo [--smallest]

Each method tries its own options and its learning rate, in the demo's norm where it has one, on several partitions that
the demo (partition 0) does not show. A trial is judged on a fifth of every client's training examples, by what the demo
shows: the mean of its accuracy as they are, with the demo's noise, and certified, averaged over the partitions. Test
examples and clients that never train are not looked at. What is printed goes into ``wafl.config.demo``.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import wafl
from benchmarks import options
from wafl.config.demo import RADIUS, demo_experiment
from wafl.config.plan import make_plan
from wafl.config.unseen import make_shift
from wafl.studies.tune import make_search
from wafl.tuning.goal import Goal


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--trials", type=int, default=32, help="per method")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--methods", nargs="*", default=[], help="by default the seven of the demo")
    given = options.read(parser, argv, trials=2, partitions=1, rounds=1, methods=["fedavg", "wafl"])
    found = [tuned(seed, given.rounds, given.trials, given.methods) for seed in range(1, given.partitions + 1)]
    for name, trials in found[0].items():
        settings = [trial.setting for trial in trials]
        assert all([trial.setting for trial in other[name]] == settings for other in found)
        values = [
            statistics.fmean(other[name][place].value or 0.0 for other in found) for place in range(len(settings))
        ]
        print(f"{name}: {len(settings)} trials")
        for place in sorted(range(len(settings)), key=values.__getitem__, reverse=True)[:3]:
            print(f"  {100.0 * values[place]:.2f}% with {shown(settings[place])}", flush=True)


@dataclass(frozen=True)
class Shown(Goal):
    """The mean of the demo's columns on held-out examples: as they are, shifted, and certified."""

    def value(self, run: wafl.Run) -> float:
        judges, center = self.held_out.judges, wafl.weights.by_examples()
        asked: dict[str, Any] = {"radii": [RADIUS], "metric": "error", "part": "test", "client_weights": center}
        error = wafl.certify(run, judges, **asked, achieved=False, progress=False)[0].value
        return (2.0 * super().value(run) + 1.0 - error) / 3.0


def tuned(partition: int, rounds: int, trials: int, methods: Sequence[str]) -> dict[str, list[Any]]:
    """All trials of each method on a partition."""
    experiment = demo_experiment(methods=methods, rounds=rounds, seeds=[partition])
    normed = any("norm" in method.model_fields_set for method in experiment.methods)
    tune = {"trials": trials, "attacked": [0.0, 1.0], "space": {"norm": []} if normed else {}}
    plan = make_plan(type(experiment).model_validate(experiment.model_dump(exclude_none=True) | {"tune": tune}))
    search = make_search(replace(plan, attack=make_shift(experiment.data, plan.clients.roster.bounds)))
    goal = search.goal
    search = replace(search, goal=Shown(goal.held_out, goal.metric, goal.attack, goal.attacked, goal.seed, goal.device))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wafl.ConcavityWarning)  # small gammas are among the trials
        return search.run().trials


def shown(setting: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value:.3g}" for name, value in setting.items())


if __name__ == "__main__":
    main()
