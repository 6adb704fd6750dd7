"""The list of all experiments: the paper's, by its own numbers, and ours."""

from __future__ import annotations

from research.experiment import Experiment

REPRODUCE = "research.reproduction.command"


def _figure(name: str, title: str, shown_on: str, file: str | None = None) -> Experiment:
    """Return the experiment of one figure or table that ``reproduce`` makes."""
    page = f"docs/reproduction/{shown_on}.md"
    return Experiment(name, title, REPRODUCE, page, f"{file or name}.toml", (name,))


PAPER = (
    _figure("figure-2", "Achieved radius by gamma", "gamma", "fig-gamma-radius"),
    _figure("figure-3", "Accuracy and loss by gamma", "gamma", "fig-gamma-sweep"),
    _figure("figure-4", "Accuracy by the share of attacked clients", "attacked", "fig-attacked-share"),
    _figure("figure-5", "Ground norms and the order of the distance", "norms", "fig-norms"),
    _figure("figure-6", "Accuracy and loss by round", "convergence", "fig-convergence"),
    _figure("table-1", "Accuracy on a digit domain that no client has", "domains", "tab-domains"),
    _figure("table-2", "The paper's partitions", "partition", "tab-partitions"),
    _figure("table-3", "The paper's digit domains", "partition", "tab-domain-data"),
)
"""The paper's figures and tables. Figure 1 is a drawing (tools/concept_figures.py)."""

FURTHER = (
    _figure("fig-gamma-condition", "Whether gamma is above the curvature of the loss", "gamma"),
    _figure("fig-gamma-wide", "Figure 3 beyond the attack's length", "gamma"),
    _figure("fig-orders", "Figure 5 with all of the paper's methods", "norms"),
    _figure("fig-convergence-dense", "Figure 6 every ten rounds, over three seeds", "convergence"),
    _figure("tab-domains-controls", "The controls of the shaped ball in table 1", "domains"),
    _figure("fig-norm-lead", "The ball in the attack's own norm, over several seeds", "norms"),
    _figure("fig-pooled", "MNIST with all images in one place", "attacked"),
    _figure("tab-domains-cnn", "Table 1 with the CNN", "domains"),
)
"""Our own figures and tables beside the paper's, which ``reproduce`` also makes."""

REGISTERED = (
    Experiment(
        "leaderboard", "Methods on unseen people and places",
        "research.leaderboard.command", "docs/leaderboard.md", "registered/natural.toml",
    ),
    Experiment(
        "promises", "Promises about the next client, checked on sealed clients",
        "research.promises.command", "docs/promises.md", "registered/promises.toml",
    ),
    Experiment(
        "attack-frontier", "Clean and attacked accuracy, by the size of each method",
        "research.registered.attack_frontier", "docs/attack-frontier.md", "registered/attack-frontier.toml",
    ),
    Experiment(
        "certified-frontier", "Clean and certified error, by the size of each method",
        "research.registered.certified_frontier", "docs/certified-frontier.md", "registered/certified-frontier.toml",
    ),
    Experiment(
        "few-examples", "Radii from formulas compared with a tuned weight decay, with few examples per client",
        "research.registered.few_examples", "docs/few-examples.md", "registered/few-examples.toml",
    ),
    Experiment(
        "clients-ball", "A ball in the clients' metric and its rivals, on a different kind of client",
        "research.registered.clients_ball", "docs/unseen.md", "registered/clients-ball.toml",
    ),
    Experiment(
        "domains", "Balls, random moves and client weights on an unseen digit domain",
        "research.registered.domains", "docs/domains.md", "registered/domains.toml",
    ),
    Experiment(
        "domains-cnn", "The domains experiment with the CNN", "research.registered.domains", "docs/domains.md",
        "registered/domains-cnn.toml", ("--model", "cnn"),
    ),
    Experiment(
        "promised-distances", "Promised error by distance, and the measured error at sealed clients",
        "research.promises.distances", "docs/promises.md", "registered/front-picture.toml",
    ),
    Experiment(
        "sealed-sets", "Prediction sets at sealed clients, as they are and attacked",
        "research.promises.sets", "docs/sealed-sets.md", "registered/sealed-sets.toml",
    ),
)  # fmt: skip
"""Our own experiments that were registered before they ran."""


def _exploratory(name: str, title: str, shown_on: str) -> Experiment:
    return Experiment(name, title, f"research.exploratory.{name.replace('-', '_')}", shown_on)


EXPLORATORY = (
    _exploratory("audit", "Audits at clients that took no part in training", "docs/audit.md"),
    _exploratory("auto-radius", 'Accuracy with radius="auto" and with a grid of radii', "docs/choosing.md"),
    _exploratory("average-last", "The gain from averaging the models of the last rounds", "docs/faq.md"),
    _exploratory("bounds", "The paper's bounds on simulated data with a known truth", "docs/proofs.md"),
    _exploratory("certificates", "How tight certificates of linear models are", "docs/theory.md"),
    _exploratory(
        "client-kinds", "A different kind of client: eight methods on vowels and rotated digits", "docs/unseen.md"
    ),
    _exploratory("compiled", "torch.compile for the local step of a CNN on a CPU", "docs/performance.md"),
    _exploratory("confidence", "How much a confidence adds to a certificate", "docs/theory.md"),
    _exploratory("garbage", "Accuracy with garbage among the training examples", "docs/rivals.md"),
    _exploratory("liars", "The worst false reports that a search finds, by method and defense", "docs/liars.md"),
    _exploratory("lipschitz", "Certified accuracy of 1-Lipschitz networks", "docs/models.md"),
    _exploratory("malicious", "The worst attack by nodes with full knowledge, by method and defense", "docs/liars.md"),
    _exploratory("natural", "Accuracy on unseen people and places, of logistic regression", "docs/natural.md"),
    _exploratory("networks", "How tight certificates of networks are", "docs/theory.md"),
    _exploratory("optimum", "How close solvers come to the optimum", "docs/theory.md"),
    _exploratory(
        "prediction-sets", "Coverage of prediction sets at unseen clients, by method", "docs/prediction-sets.md"
    ),
    _exploratory("tabular-radius", 'Loss on 20 tables with radius="auto", decay and the lasso', "docs/tabular.md"),
    _exploratory("privacy", "Accuracy under differential privacy", "docs/flower.md"),
    _exploratory("private-nodes", "Accuracy where nodes add noise to each step", "docs/privacy.md"),
    _exploratory("published", "How much looser published certificates are", "docs/certificate-files.md"),
    _exploratory("radius", "Training by radius compared with fixed gammas", "docs/theory.md"),
    _exploratory("rivals", "All methods side by side, with the same tuning", "docs/rivals.md"),
    Experiment(
        "attack-frontier-2",
        "The attack frontier with a rate per size, TRADES and AutoAttack: a draft, not registered yet",
        "research.registered.attack_frontier_2",
        "docs/attack-frontier.md",
    ),
    Experiment(
        "attack-budget",
        "WAFL, FedPGM and FedAvg under the worst W_2 shift, with a CNN: a draft, not registered yet",
        "research.registered.attack_budget",
        "docs/attack-frontier.md",
    ),
    Experiment(
        "clients-ball-cnn",
        "Clients of another kind with a small CNN: a draft, not registered yet",
        "research.registered.clients_ball_cnn",
        "docs/unseen.md",
    ),
    Experiment(
        "leaderboard-2",
        "The leaderboard with 12 sizes per method and a temperature: a draft, not registered yet",
        "research.leaderboard.second",
        "docs/leaderboard.md",
    ),
    Experiment("tune-demo", "The settings of `wafl run`", "research.tune_demo", "docs/tour.md"),
)
"""Our own experiments that were not registered."""

EXPERIMENTS = {each.name: each for each in (*PAPER, *FURTHER, *REGISTERED, *EXPLORATORY)}
