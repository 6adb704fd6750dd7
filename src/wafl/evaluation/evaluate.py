"""Evaluate a model on the clients' test data, clean, attacked or shifted, per client and pooled."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from wafl.attacks import Attack, Function, OwnAttack, Population
from wafl.base.checks import check_seed
from wafl.base.random import Purpose, choose
from wafl.base.shown import one_more, shows
from wafl.data.arguments import check_alike, check_arguments
from wafl.data.federation import Federation
from wafl.evaluation.score import ClientScore, Score
from wafl.objectives.surrogate import single_lane
from wafl.results.run import Run
from wafl.tasks.problem import Problem
from wafl.tasks.task import Loss

CHUNK = 2048
"""The number of examples that are evaluated together."""


@shows("evaluate")
def evaluate(
    model: Run | nn.Module,
    clients: Federation,
    *,
    attack: Attack | Function | None = None,
    attacked: float = 1.0,
    unseen: Federation | None = None,
    seed: int = 0,
    loss: Loss | None = None,
    progress: bool | None = None,
) -> Score:
    """Return a model's score on every client's held-out examples, with a share of the clients under attack.

    Most attacks, and the shifts of :mod:`wafl.shifts`, move each example separately. :class:`wafl.WassersteinShift`
    moves all attacked clients' examples as one distribution. A label shift does not move examples, but changes their
    weights. Moved examples stay within the bounds that the clients declare, unless the attack has other ``bounds``.

    See Also:
        :func:`wafl.compare`, :func:`wafl.certify`

    Args:
        model: a trained run, or any module.
        clients: the clients with the test examples.
        attack: an attack, a shift, or a function of your own, which takes a model, examples and labels and returns the
            moved examples.
        attacked: the share of the clients to attack. The clients in a smaller share are also in every larger share.
        unseen: clients that took no part in training (:meth:`wafl.Federation.hold_out`). With them, the score contains
            two more scores: ``train``, on the clients' training examples, and ``unseen``, on all examples of the unseen
            clients, both with the same share of clients under the same attack.
        seed: the seed of the attacked clients and of random attacks.
        loss: the loss to measure; by default the run's loss, or cross-entropy for a module.
        progress: whether to show progress; by default on a terminal and in notebooks.
    """
    check_arguments("evaluate(model, clients)", model, clients)
    check_seed(seed)
    check_share(attacked)
    score = scores_of(model, clients, unseen, [check_attack(attack, clients)], [attacked], seed, loss)[0]
    return replace(score, label=label_of(model))


def scores_of(
    model: Run | nn.Module,
    clients: Federation,
    unseen: Federation | None,
    attacks: Sequence[Attack | None],
    attacked: Sequence[float],
    seed: int,
    loss: Loss | None = None,
) -> list[Score]:
    """Return the scores of a model under each attack, for each share of attacked clients; clean data have one score.

    With unseen clients, each score also has the scores of the clients on training data, and of the unseen clients.
    """
    populations = [clients]
    if unseen is not None:
        check_alike(clients, unseen)
        populations += [replace(clients, test=clients.train), replace(unseen, test=unseen.examples)]
    tested = [_scores(model, each, attacks, attacked, seed, loss) for each in populations]
    if unseen is None:
        return tested[0]
    return [replace(test, train=train, unseen=new) for test, train, new in zip(*tested, strict=True)]


def label_of(model: Run | nn.Module) -> str:
    """Return the name of a model in tables: the method of a run, or the class of a module."""
    return model.name if isinstance(model, Run) else type(model).__name__


def _scores(
    model: Run | nn.Module,
    clients: Federation,
    attacks: Sequence[Attack | None],
    attacked: Sequence[float],
    seed: int,
    loss: Loss | None,
) -> list[Score]:
    present = present_clients(clients)
    problem, _, _ = single_lane(model, *clients.test.of(present[0]), loss, clients.num_classes)

    def measured(attack: Attack | None, rows: Tensor) -> Tensor:
        """Return losses and, for classes, whether predictions are correct, ``[1 or 2, N]``."""
        results = examine(problem, clients, attack, seed, rows)
        return torch.cat([values for values in results if values is not None])

    clean = measured(None, torch.arange(len(clients.test.y)))
    scores: list[Score] = []
    for attack in attacks:
        drawn = [[]] if attack is None else [draw_attacked(present, share, seed) for share in attacked]
        moved = clean
        most = max(drawn, key=len, default=[])
        if attack is not None and attack.pointwise and most:  # these include the clients of every smaller share
            rows = rows_of(clients, most)
            moved = clean.index_copy(1, rows, measured(attack, rows))
        for victims in drawn:
            rows = rows_of(clients, victims)
            known = attack is None or attack.pointwise or not victims
            mixed = clean.index_copy(1, rows, moved[:, rows] if known else measured(attack, rows))
            scores.append(make_score(mixed, clients, present, victims, attack, seed))
    return scores


def present_clients(clients: Federation) -> list[int]:
    """Return the clients that have test examples."""
    present = [client for client, count in enumerate(clients.test.num_examples.tolist()) if count > 0]
    if not present:
        raise ValueError("no client has test examples: make the federation with test_fraction > 0")
    return present


def draw_attacked(present: list[int], share: float, seed: int) -> list[int]:
    """Draw a share of the clients, rounded to a whole number."""
    chosen = choose(seed, Purpose.ATTACKED, len(present), round(share * len(present)))
    return [present[index] for index in chosen]


def rows_of(clients: Federation, chosen: list[int]) -> Tensor:
    """Return the rows of these clients' test examples."""
    every = torch.arange(len(clients.test.y))
    return torch.cat([every[:0], *(every[slice(*clients.test.offsets[each : each + 2].tolist())] for each in chosen)])


def examine(
    problem: Problem, clients: Federation, attack: Attack | None, seed: int, rows: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return the losses ``[1, N]`` of a model on test rows and, for classes, 1 where it is correct."""
    device, dtype = problem.params.device, problem.params.dtype
    if attack is not None and not attack.pointwise:  # a shift of the whole distribution must see all of it
        pieces = [rows]
    else:
        pieces = list(rows.split(CHUNK if attack is None else attack.at_once(CHUNK, device)))
    losses: list[Tensor] = []
    correct: list[Tensor] = []
    for piece in pieces:
        x = clients.test.rows(piece, dtype).to(device)[None]
        y = clients.test.y[piece].to(device)[None]
        y = y.to(dtype) if y.is_floating_point() else y
        inputs = x if attack is None else attack.moved(problem, Population(x, y, piece), seed)
        outputs = problem.outputs(inputs).double()
        losses.append(problem.output_loss.value(outputs, y).cpu())
        if clients.num_classes is not None:
            correct.append((outputs.argmax(-1) == y).double().cpu())
        one_more("batches")
    return torch.cat(losses, dim=1), torch.cat(correct, dim=1) if correct else None


def make_score(
    measured: Tensor, clients: Federation, present: list[int], victims: list[int], attack: Attack | None, seed: int
) -> Score:
    """Return the score with one record per client; see :func:`_scores` for the measured values."""
    losses, *correct = measured
    if not bool(torch.isfinite(losses).all()):
        row = int((~torch.isfinite(losses)).nonzero()[0])
        client = int(torch.searchsorted(clients.test.offsets, row, right=True)) - 1
        raise ValueError(f"the loss is NaN or infinite on {clients.names[client]}: its parameters are not usable")
    weight = torch.full_like(losses, 1.0 / len(losses))
    if attack is not None and victims:
        rows = rows_of(clients, victims)
        shares = attack.weights(clients.test.y[rows], clients.num_classes, seed)
        if shares is not None:
            weight[rows] = _check_shares(shares, len(rows)) * (len(rows) / len(losses))
    scores: list[ClientScore] = []
    for client in present:
        rows = slice(*clients.test.offsets[client : client + 2].tolist())
        total = weight[rows].sum()
        # A client without labels after a strong shift has no weight, and is shown unchanged.
        share = weight[rows] / total if total > 0 else torch.full_like(weight[rows], 1.0 / len(weight[rows]))
        scores.append(
            ClientScore(
                name=clients.names[client],
                accuracy=float(share @ correct[0][rows]) if correct else None,
                loss=float(share @ losses[rows]),
                num_examples=rows.stop - rows.start,
                attacked=client in victims,
                weight=float(total),
            )
        )
    about = "none" if attack is None else attack.describe(clients.unit)
    return Score(scores, about, clients.unit, seed, shift=clients.shift)


def check_share(attacked: float) -> None:
    """Raise ValueError if the value is not a share of the clients."""
    if isinstance(attacked, str) or not 0.0 <= attacked <= 1.0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"attacked={attacked!r} is a share of the clients and must lie in [0, 1]")


def check_attack(attack: object, clients: Federation) -> Attack | None:
    """Return the attack within the clients' bounds, unless it has other bounds, or None for clean data."""
    if attack is None:
        return None
    if isinstance(attack, type):
        raise ValueError(f"{attack.__name__} is a class: pass an instance, such as {attack.__name__}(epsilon=0.1)")
    if callable(attack) and not isinstance(attack, Attack):
        attack = OwnAttack(attack)
    if not isinstance(attack, Attack):
        raise ValueError(f"{attack!r} is not an attack: use wafl.PGD(epsilon=...), a shift of wafl.shifts, or another")
    if attack.needs_classes and clients.num_classes is None:
        raise ValueError(f"{attack.describe(clients.unit)}: this attack needs classes, and this is a regression")
    attack.check_length()
    attack.check_unit(clients.bounds, clients.input_shape, clients.unit)
    return attack.within(clients.bounds)


def _check_shares(shares: Tensor, count: int) -> Tensor:
    total = float(shares.sum())
    if shares.shape != (count,) or not bool((shares >= 0).all()) or not abs(total - 1.0) <= 1e-3:
        raise ValueError(
            f"the attack's weights have shape {tuple(shares.shape)} and sum to {total:g}: they must be {count} "
            "numbers, one per attacked example, at least 0, that sum to 1"
        )
    return shares
