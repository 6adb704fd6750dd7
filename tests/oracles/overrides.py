"""Values that somebody who can start Flower runs may give by ``-c`` to run code on nodes, or to get at their data."""

from __future__ import annotations

COLON = "\\u003a"  # as TOML writes it in a text
HOSTILE: list[tuple[str, object]] = [
    ("model.kind", "shutil:rmtree"),
    ("model.kind", f'"shutil{COLON}rmtree"'),
    ("model.kind", '"shutil\\U0000003armtree"'),
    ("methods.fedavg.client_weights", "yaml:unsafe_load"),
    ("methods.fedavg.client_weights", f'{{kind="yaml{COLON}unsafe_load", options={{stream="!!python/x"}}}}'),
    ("methods.fedavg.client_weights", '{"\\u006bind"="yaml:unsafe_load"}'),
    ("methods.fedavg.client_weights", "{kind='yaml:unsafe_load'}"),
    ("methods.fedavg.client_weights.kind", "yaml:unsafe_load"),
    ("methods.fedavg.client_weights", f'["yaml{COLON}unsafe_load"]'),
    ("methods.fedavg.method", f'"os{COLON}system"'),
    ("methods.fedavg.method", "os:system"),
    ("methods.fedavg.server", '{kind="os:system"}'),
    ("methods.fedavg.options", '{a={b={c="os:system"}}}'),
    ("methods", '{fedavg={method="os:system"}}'),
    ("methods.wafl.gamma", '[1.0, "os:system"]'),
    ("methods.wafl.gamma", '[[1.0], {kind="os:system"}]'),
    ("methods.wafl.gamma", "[" * 2000),
    ("methods.wafl.gamma", "1.0"),
    ("schedule.rounds", '"5"'),
    ("schedule.rounds", "1979-05-27"),
    ("schedule", '{rounds=5}'),
    ("data.source", "os:getcwd"),
    ("data.dataset", "mnist"),
    ("data.split", f'"os{COLON}system"'),
    ("model.loss", "os:system"),
    ("attack.kind", "none"),
    ("device", "cuda:0"),
    ("seeds", "[5]"),
]  # fmt: skip
