"""How good a model is on its clients' test data: clean, attacked, shifted; per client and pooled."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from wafl.attacks import ATTACKS, Attack, Function, OwnAttack
from wafl.base.checks import check_seed
from wafl.base.random import Purpose, choose
from wafl.base.shown import one_more, shows
from wafl.data.arguments import check_alike, check_arguments
from wafl.data.federation import Federation
from wafl.evaluation.score import ClientScore, Score
from wafl.objectives.surrogate import single_lane
from wafl.results.run import Run
from wafl.tasks.inputs import Inputs
from wafl.tasks.problem import Problem
from wafl.tasks.task import Loss

CHUNK = 2048
"""How many examples are evaluated together."""

Measured = tuple[Tensor, Tensor | None]
"""Losses ``[L, N]`` and, for classes, whether each prediction is right."""


@shows("evaluate")
def evaluate(
    model: Run | nn.Module,
    clients: Federation,
    *,
    attack: Attack | Function | str | None = None,
    attacked: float = 1.0,
    unseen: Federation | None = None,
    seed: int = 0,
    redraw: int = 0,
    epsilon: float | None = None,
    loss: Loss | None = None,
    progress: bool | None = None,
) -> Score:
    """The score of a model on every client's held-out examples, with a share of the clients under attack.

    Most attacks, and the shifts of :mod:`wafl.shifts`, move each example by itself; :class:`wafl.WassersteinShift`
    moves all attacked clients' examples as one distribution; a label shift moves none, but makes some count for more.
    Moved examples stay within the bounds that the clients declare, unless the attack has other ``bounds``.

    Args:
        model: a trained run, or any module.
        clients: whose test examples to use.
        attack: an attack or a shift; the name of an attack, such as ``"autoattack"`` (:data:`wafl.attacks.ATTACKS`); or
            your own, a function of a model, examples and labels that returns the moved examples.
        attacked: the share of the clients to attack; those of a smaller share are among those of a larger one.
        unseen: clients that took no part in training (:meth:`wafl.Federation.hold_out`). With them, the score has two
            more: ``train``, on the clients' training examples, and ``unseen``, on all examples of the unseen clients,
            both with the same share of clients under the same attack.
        seed: what the attacked clients and random attacks are drawn from.
        redraw: another number, such as the round, draws other clients.
        epsilon: the size of an attack that is given by name.
        loss: the loss to measure; by default that of the run, or cross-entropy for a module.
        progress: whether to show how far it is; by default on a terminal and in notebooks.
    """
    check_arguments("evaluate(model, clients)", model, clients)
    check_seed(seed)
    check_share(attacked)
    known = check_attack(_named_attack(attack, epsilon), clients)

    def tested(population: Federation) -> Score:
        tests = present_clients(population)
        problem, _, _ = single_lane(model, *population.test.of(tests[0]), loss, population.num_classes)
        victims = set(draw_attacked(tests, attacked, seed, redraw)) if known is not None else set[int]()
        losses, correct = examine(problem, population, None, seed)
        if known is not None and victims:
            rows = rows_of(population, sorted(victims))
            losses, correct = overlay((losses, correct), rows, examine(problem, population, known, seed, rows))
        return make_score(losses[0], None if correct is None else correct[0], population, tests, victims, known, seed)

    test, *others = map(tested, populations(clients, unseen))
    return replace(test, train=others[0], unseen=others[1]) if others else test


def populations(clients: Federation, unseen: Federation | None) -> list[Federation]:
    """Whom to test: the clients; with unseen ones, also the clients on training data, and the unseen on all theirs."""
    if unseen is None:
        return [clients]
    check_alike(clients, unseen)
    return [clients, replace(clients, test=clients.train), replace(unseen, test=unseen.train.joined(unseen.test))]


def present_clients(clients: Federation) -> list[int]:
    """The clients that have test examples."""
    present = [client for client, count in enumerate(clients.test.num_examples.tolist()) if count > 0]
    if not present:
        raise ValueError("no client has test examples: make the federation with test_fraction > 0")
    return present


def draw_attacked(present: list[int], share: float, seed: int, redraw: int = 0) -> list[int]:
    """A share of the clients, rounded to a whole number."""
    chosen = choose(seed, Purpose.ATTACKED, len(present), round(share * len(present)), redraw)
    return [present[index] for index in chosen]


def rows_of(clients: Federation, chosen: list[int]) -> Tensor:
    """The rows of these clients' test examples."""
    return torch.cat([torch.arange(*clients.test.offsets[client : client + 2].tolist()) for client in chosen])


def overlay(clean: Measured, rows: Tensor, moved: Measured) -> Measured:
    """Results on clean examples, with these rows replaced by results on moved ones."""
    correct = None if clean[1] is None or moved[1] is None else clean[1].index_copy(1, rows, moved[1])
    return clean[0].index_copy(1, rows, moved[0]), correct


def examine(
    problem: Problem, clients: Federation, attack: Attack | None, seed: int, rows: Tensor | None = None
) -> Measured:
    """Losses ``[L, N]`` of every lane's model on the same test examples, and whether each is classified correctly."""
    rows = rows if rows is not None else torch.arange(len(clients.test.y))
    lanes, device, dtype = len(problem.params), problem.params.device, problem.params.dtype
    if attack is not None and not attack.pointwise:  # a shift of the whole distribution must see all of it
        pieces = [rows]
    else:
        pieces = list(rows.split(CHUNK if attack is None else attack.at_once(CHUNK, device)))
    losses: list[Tensor] = []
    correct: list[Tensor] = []
    for piece in pieces:
        x = clients.test.rows(piece, dtype).to(device)[None]
        y = clients.test.y[piece].to(device)
        y = (y.to(dtype) if y.is_floating_point() else y).expand(lanes, *y.shape)
        inputs = Inputs(x, lanes)
        inputs = inputs if attack is None else attack.move_lanes(problem, inputs, y, seed, piece)
        outputs = problem.outputs(inputs).double()
        losses.append(problem.output_loss.value(outputs, y).cpu())
        if clients.num_classes is not None:
            correct.append((outputs.argmax(-1) == y).double().cpu())
        one_more("batches")
    return torch.cat(losses, dim=1), torch.cat(correct, dim=1) if correct else None


def make_score(
    losses: Tensor,
    correct: Tensor | None,
    clients: Federation,
    present: list[int],
    victims: set[int],
    attack: Attack | None,
    seed: int,
) -> Score:
    """The score with one record per client, from one value per example."""
    if not bool(torch.isfinite(losses).all()):
        row = int((~torch.isfinite(losses)).nonzero()[0])
        client = int(torch.searchsorted(clients.test.offsets, row, right=True)) - 1
        raise ValueError(f"the loss is NaN or infinite on {clients.names[client]}: its parameters are not usable")
    weight = torch.full_like(losses, 1.0 / len(losses))
    if attack is not None and victims:
        rows = rows_of(clients, sorted(victims))
        shares = attack.weights(clients.test.y[rows], clients.num_classes, seed)
        if shares is not None:
            weight[rows] = _check_shares(shares, len(rows)) * (len(rows) / len(losses))
    scores: list[ClientScore] = []
    for client in present:
        rows = slice(*clients.test.offsets[client : client + 2].tolist())
        total = weight[rows].sum()
        # A client whose labels have vanished under a strong shift has no weight, and is shown as it is.
        share = weight[rows] / total if total > 0 else torch.full_like(weight[rows], 1.0 / len(weight[rows]))
        scores.append(
            ClientScore(
                name=clients.names[client],
                accuracy=None if correct is None else float(share @ correct[rows]),
                loss=float(share @ losses[rows]),
                num_examples=rows.stop - rows.start,
                attacked=client in victims,
                weight=float(total),
            )
        )
    about = "none" if attack is None else attack.describe(clients.unit)
    return Score(scores, about, clients.unit, seed, shift=clients.shift)


def check_share(attacked: float) -> None:
    """Refuse what is not a share of the clients."""
    if isinstance(attacked, str) or not 0.0 <= attacked <= 1.0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"attacked={attacked!r} is a share of the clients and must lie in [0, 1]")


def check_attack(attack: object, clients: Federation) -> Attack | None:
    """The attack on these clients, within their bounds unless it has its own; None for clean data."""
    if attack is None:
        return None
    if isinstance(attack, type):
        raise ValueError(f"{attack.__name__} is a class: make one of it, such as {attack.__name__}(epsilon=0.1)")
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


def _named_attack(attack: Attack | Function | str | None, epsilon: float | None) -> Attack | Function | None:
    if not isinstance(attack, str):
        if epsilon is not None:
            raise ValueError("epsilon is only for an attack that is given by name: other attacks have their own size")
        return attack
    if attack not in ATTACKS:
        names = ", ".join(map(repr, ATTACKS))
        raise ValueError(f"unknown attack {attack!r}: use one of {names}, or an attack such as wafl.PGD(epsilon=...)")
    if epsilon is None:
        raise ValueError(f"attack={attack!r} needs epsilon=, its size in the units of the data")
    kind = ATTACKS[attack]
    return kind(**{kind.settings.size: epsilon})
