"""Choose the settings of ``wafl run`` as ``wafl tune`` does: the same number of trials for every method.

    .venv/bin/python benchmarks/tune_demo.py [--smallest]

Each method tries its own options, its learning rate and, where it has one, its norm, on several partitions that the
demo (partition 0) does not show. A trial is judged on a fifth of every client's training examples: its accuracy,
averaged over the partitions and over 0, 20, 40, 60 and 80% attacked clients. Test examples are never looked at. What is
printed goes into ``wafl.config.demo``.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Sequence
from typing import Any

import options
import wafl
from wafl.config.demo import demo_experiment
from wafl.config.plan import make_plan
from wafl.studies.tune import make_search


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


def tuned(partition: int, rounds: int, trials: int, methods: Sequence[str]) -> dict[str, list[Any]]:
    """All trials of each method on a partition."""
    experiment = demo_experiment(methods=methods, rounds=rounds, seeds=[partition])
    described = experiment.model_dump(exclude_none=True) | {"tune": {"trials": trials}}
    plan = make_plan(type(experiment).model_validate(described))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wafl.ConcavityWarning)  # small gammas are among the trials
        return make_search(plan).run().trials


def shown(setting: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value:.3g}" for name, value in setting.items())


if __name__ == "__main__":
    main()
