"""Find the clients of a study, and store their list in the study's folder for a resume."""

from collections.abc import Mapping, Sequence
from logging import INFO
from pathlib import Path
from typing import Any

from wafl.base.errors import ConfigError
from wafl.config.experiment import Experiment
from wafl.config.plan import Entry, make_tolerance
from wafl.flower.server.census import Census
from wafl.flower.server.exchange import Post
from wafl.flower.server.grid import GridClients
from wafl.flower.wire.logs import log
from wafl.objectives.ball.cost_matrix import CLIENTS
from wafl.studies.roster import write_roster
from wafl.train.clients import Roster


class Finder:
    """A function that finds the clients of an experiment's methods, and stores their roster in the study's folder.

    ``known`` is the roster of a study that was started earlier.
    """

    def __init__(self, post: Post, experiment: Experiment, folder: Path, known: Roster | None = None) -> None:
        self._post, self._experiment, self._folder, self._known = post, experiment, folder, known

    def __call__(self, entries: Sequence[Entry]) -> GridClients:
        """Return the clients of these methods, after waiting for nodes, and keep their roster."""
        experiment = self._experiment
        if experiment.flower.partial_sums:
            _check_means(entries)
            if experiment.privacy is not None:
                raise ConfigError(
                    "privacy: a node's mean hides its clients' updates, which must each be clipped: leave "
                    "flower.partial_sums out"
                )
        specs = {entry.name: entry.specs(experiment.seeds) for entry in entries}
        every = [spec for runs in specs.values() for spec in runs]
        with_sizes = any(spec.needs_sizes for spec in every)
        differ = any(spec.asks_cost_matrix for spec in every)  # by the nodes that are here first
        closed = differ or any(entry.method.client_weights.closed for entry in entries)
        log_settings(experiment, entries)
        data, caps = experiment.data, experiment.caps.settled(remote=True)
        unseen = None if data.unseen is None else (data.unseen, data.unseen_seed)
        about = self._known, self._keep, closed, caps, unseen, data.num_classes
        census = Census(self._post, experiment.flower, with_sizes, *about)
        census.gather()
        self.clients = GridClients(self._post, census, experiment, specs, self._folder)
        return self.clients

    def write_roster(self) -> None:
        """Write the current roster to the study's folder."""
        self._keep(self.clients.roster)

    def _keep(self, roster: Roster) -> None:
        if (self._folder / "config.toml").exists():  # not before the study's folder exists
            write_roster(self._folder, roster)


def log_settings(experiment: Experiment, entries: Sequence[Entry] = ()) -> None:
    """Log the settings in effect: trust in clients, their privacy, and the schedule of each method."""
    sections: dict[str, Mapping[str, Any]] = {
        "caps": vars(experiment.caps.settled(remote=True)),
        "tolerance": vars(make_tolerance(experiment, remote=True)),
        "privacy": {} if experiment.privacy is None else vars(experiment.privacy),
        **{
            f"schedule of {entry.name}": {**vars(spec.schedule), **entry.grid, "seed": experiment.seeds}
            for entry in entries
            for spec in entry.specs(experiment.seeds)[:1]
        },
    }
    for name, values in sections.items():
        settings = ", ".join(f"{key} = {value}" for key, value in values.items() if value is not None)
        log(INFO, "%s: %s", name, settings or "none")


def _check_means(entries: Sequence[Entry]) -> None:
    """Raise ConfigError for methods whose server needs more than a node's mean."""
    for entry in entries:
        method = entry.method
        if method.objective is not None and method.objective.cost_matrix == CLIENTS:
            raise ConfigError(
                f"flower.partial_sums: {entry.name} has cost_matrix={CLIENTS!r}, for which each client sends the means "
                "of its classes: leave partial_sums out, or give a cost matrix"
            )
        if not method.server.averages:
            raise ConfigError(
                f"flower.partial_sums: {entry.name} has server={method.server}, which needs each client's model, and a "
                "node would send only a mean: leave partial_sums out, or use a server that takes the clients' mean"
            )
        if method.client_weights.damps or method.local.reports:
            what = "gradient of each client" if method.local.reports else "length of each client's update"
            raise ConfigError(f"flower.partial_sums: {entry.name} needs the {what}: leave partial_sums out")
        if method.local.sends and method.client_weights.learns:
            raise ConfigError(
                f"flower.partial_sums: {entry.name} learns its client weights and weights by them what clients send "
                f"({', '.join(method.local.sends)}), but a node's mean has the cohort's weights: leave partial_sums out"
            )
