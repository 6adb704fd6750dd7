"""Break the package on purpose, in many places, and say which mistakes ``make test`` would let live.

    .venv/bin/python -m tests.mutants                      every mutant, one per core at a time
    .venv/bin/python -m tests.mutants --list               their names
    .venv/bin/python -m tests.mutants --only FedProx       those whose name has this word

Each named method becomes FedAvg, each server the mean, each rule equal weights, each local step plain descent, each
objective and attack none; and each proof has a mutant or more with a wrong sign, a wrong factor or an off-by-one. A
mutant is made while a module is imported, in a separate process: no file is changed. Of the tests that ``make test``
runs, those that can see it are tried, until one fails, which takes a core some 5 seconds. It ends with an error if a
mutant lives: write a test for it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from io import StringIO
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "wafl"
SMALL = "tests/methods/test_small_references.py"
SELECTION = "not processes and not slow and not data"
"""What ``make test`` runs, without what starts processes; ``--one-case=long`` does the rest."""
LIMIT = 300
"""The seconds after which a mutant that never ends counts as killed."""
PROCESSES = multiprocessing.get_context("forkserver")
"""Each mutant's process is a copy of one that has imported what takes long, but nothing of the package."""
PROCESSES.set_forkserver_preload(["pytest", "scipy.optimize", "torch.distributed.tensor"])


@dataclass(frozen=True)
class Mutant:
    """A mistake: the file in which ``old``, which it has once, becomes ``new``; and the tests that can see it, in turn.

    Without ``old``, ``new`` is added at the end of the file.
    """

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    def source(self) -> str:
        """The text of the file with the mistake."""
        text = (SOURCE / self.path).read_text()
        if not self.old:
            return f"{text}\n\n{self.new}\n"
        if text.count(self.old) != 1:
            raise SystemExit(f"{self.name}: {self.old!r} is {text.count(self.old)} times in {self.path}: name it anew")
        return text.replace(self.old, self.new)

    def killer(self) -> str | None:
        """The first test that fails with it; None if it lives."""
        result, answer = PROCESSES.Pipe(duplex=False)
        process = PROCESSES.Process(target=run_inside, args=(self, answer))
        process.start()
        answer.close()
        if not result.poll(LIMIT):
            process.kill()
            return f"a test takes longer than {LIMIT} s"
        code, failed, output = result.recv()
        process.join()
        if code == pytest.ExitCode.OK:
            return None
        if code in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED) and failed:
            return failed
        raise SystemExit(f"{self.name}: {' '.join(self.tests)} did not run:\n{output}")


class FirstFailure:
    """A plugin for pytest that remembers which test failed first, or which file could not be imported."""

    name: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.name = self.name or (report.nodeid if report.failed else None)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.name = self.name or (report.nodeid if report.failed else None)


def run_inside(mutant: Mutant, answer: Connection) -> None:
    """Run a mutant's tests in this process, which imports the file with the mistake; answer how that ended."""
    path, usual = str(SOURCE / mutant.path), SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        return compile(mutant.source(), path, "exec") if self.path == path else usual(self, fullname)

    SourceFileLoader.get_code = get_code
    sys.dont_write_bytecode = False  # or every process compiles the package anew
    os.chdir(ROOT)
    options = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--tb=short", "--one-case=long", "-m", SELECTION]
    first = FirstFailure()
    with redirect_stdout(StringIO()) as output:
        code = pytest.main([*options, *mutant.tests], plugins=[first])
    answer.send((code, first.name, output.getvalue()))


def replaced(kind: type, methods: Mapping[str, str]) -> str:
    """Code for the end of a file: these methods of a class, each a lambda or a name, that replace its own."""
    return "\n".join(f"{kind.__name__}.{name} = {code}" for name, code in methods.items())


def file_of(kind: type) -> str:
    """The file of a class, as a mutant names it."""
    return kind.__module__.removeprefix("wafl.").replace(".", "/") + ".py"


def small(test: str, name: str) -> str:
    """The small reference of a name in a list."""
    return f"{SMALL}::test_{test}_trains_like_its_reference[{name}]"


NO_MOVE = """
def _no_move(self, problem, x, y, state=None):
    from wafl.objectives.base import Move, ObjectiveState

    loss = problem.loss(x, y)
    return Move(x, y, loss, 0.0 * loss, loss == loss, state=state or ObjectiveState())
"""


def of_lists() -> Iterator[Mutant]:
    """Everything that has a name in a list becomes what does nothing; what does nothing already is left out."""
    import wafl
    from wafl.attacks import ATTACKS
    from wafl.local import LOCAL_STEPS
    from wafl.servers import AGGREGATES, OPTIMIZERS
    from wafl.weights import RULES

    method = small("a_named_method", "{}")
    for name in wafl.METHODS:
        if name != "FedAvg":
            new = f"METHODS[{name!r}].options.parts = lambda self: {{}}"
            yield Mutant(f"method {name} is FedAvg", "methods/__init__.py", "", new, (method.format(name),))
    for name, server in OPTIMIZERS.items():
        new = replaced(server, {"apply": "lambda self, params, mean, memory: (mean, memory)"})
        yield Mutant(f"server {name} is the mean", file_of(server), "", new, (small("a_server", name),))
    for name, server in AGGREGATES.items():
        new = replaced(server, {"aggregate": "lambda self, update: update.mean()"})
        yield Mutant(f"server {name} is the mean", file_of(server), "", new, (small("a_server", name),))
    equal = {
        "initial": "lambda self, sizes: __import__('torch').full((len(sizes),), 1 / len(sizes)).double()",
        "learn": "lambda self, weights, clients, losses, round: weights",
    }
    for name, rule in RULES.items():
        if not rule.equal:
            tests = (small("a_rule_for_the_client_weights", name),)
            changed = equal if rule().learns else {"initial": equal["initial"]}
            yield Mutant(f"rule {name} is equal weights", file_of(rule), "", replaced(rule, changed), tests)
    plain = {"direction": "lambda self, gradient, state: (gradient, state.carry)"}
    for name, step in LOCAL_STEPS.items():
        if "direction" in vars(step):
            tests = (small("a_local_step", name),)
            yield Mutant(f"local step {name} is descent", file_of(step), "", replaced(step, plain), tests)
    seen = {type(preset().objective): method.format(name) for name, preset in wafl.METHODS.items()}
    for kind, test in seen.items():
        if kind is not type(None):
            new = NO_MOVE + replaced(kind, {"__call__": "_no_move"})
            yield Mutant(f"objective {kind.__name__} is none", file_of(kind), "", new, (test,))
    still = {"move": "lambda self, problem, population, seed=0: population.x"}
    for attack in ATTACKS.values():
        new, tests = replaced(attack, still), ("tests/attacks/test_small_references.py",)
        yield Mutant(f"attack {attack.__name__} is none", file_of(attack), "", new, tests)


def of_file(name: str, *functions: str) -> tuple[str, ...]:
    """Some test functions of a file, or all of them; the file is in ``tests/theory`` if no folder is named."""
    folder, _, file = name.rpartition("/")
    path = f"tests/{folder or 'theory'}/test_{file}.py"
    return tuple(f"{path}::test_{function}" for function in functions) or (path,)


SMALL_PROOFS = of_file("small_proofs")
ORDINARY = of_file("ordinary_modules", "joins_have_exactly_their_slopes_and_jumps")
UNUSUAL = of_file("promises/unusual_modules", "the_checker_reads_each_module_or_says_why_not")
UNKNOWN = of_file("unknown_modules", "a_weight_that_was_replaced_is_still_the_weight")
ERROR = of_file("phi", "the_distance_to_an_error_is_the_least_move_that_makes_one")
SETTLED = (*SMALL_PROOFS, *of_file("phi", "around_a_settled_ascent_nothing_is_missed"))
ELLIPSOIDS = of_file("phi", "no_ellipsoid_leaves_out_a_part_of_the_ball")
CUTS = of_file("phi", "after_cuts_the_bound_of_a_part_is_above_the_value_of_each_point_in_it")
LINE = of_file("phi", "a_line_between_two_classes_is_searched_to_any_tolerance")
BOTH_SIDES = (
    *of_file("phi", "phi_by_brute_force_lies_between_both_sides"),
    *of_file("certificates", "no_ascent_in_the_ball_finds_a_larger_loss"),
)
SQUARES = (
    *of_file("phi", "phi_of_many_squared_errors_in_l_inf_lies_below_its_upper_side"),
    *of_file("phi", "phi_of_a_squared_error_agrees_with_brute_force"),
    *of_file("certificates", "the_certificate_of_a_squared_error_with_two_outputs_is_the_worst_case"),
)
NEVER_BELOW = of_file("never_below")
ACTIVATIONS = of_file("activations", "secants_and_strips_hold_a_dense_grid")
ALONG = (
    *of_file("margins", "no_hidden_unit_behind_two_layers_moves_farther_than_its_lines"),
    *of_file("margins", "the_bound_is_never_below_phi", "no_attack_in_many_dimensions_gets_above_the_bound"),
    *NEVER_BELOW,
)
STEEPEST = of_file("margins", "margins_are_those_of_the_parameters_that_are_asked_about")
REPORTS = of_file("small_references")
DUAL = of_file("certificates", "the_dual_is_minimized_for_many_radii_with_few_queries")
REACHED = of_file("certificates", "the_gap_is_kept_at_every_radius")
KINK = of_file("certificates", "the_kink_of_an_error_rate_is_found_where_tangents_meet")
NETWORK = (
    *of_file("margins", "certificates_of_networks_are_proven_and_never_above_the_simple_bound"),
    *NEVER_BELOW,
)
QUADRATIC = of_file("certificates", "a_networks_certificate_for_norms_other_than_l2_is_at_most_quadratic_in_the_radius")
LEAST = of_file("certificates", "the_certificate_is_the_minimum_of_the_dual")
KNAPSACK = (
    *of_file("certificates", "the_certified_error_rate_is_the_best_use_of_the_budget"),
    *of_file("next_client", "certified_error_rates_are_never_below_the_worst_and_need_no_bounds"),
)
LAYERS = of_file(
    "constants",
    "an_activation_used_twice_bends_twice",
    "layers_without_slack_attain_their_bounds",
    "activations_have_the_slope_and_curvature_of_the_table",
    "the_bound_of_a_convolution_is_above_the_norm_of_its_matrix",
    "no_search_finds_more_than_a_networks_bounds",
)
LINEAR = of_file("constants", "no_search_finds_more_than_a_linear_models_constants_and_exact_ones_are_attained")
SMOOTH = of_file("constants", "the_smoothness_of_the_squared_error_is_attained")
SWAPPED = of_file("constants", "l_z_with_labels_is_lipschitz_in_the_joint_metric")
REACH = of_file("constants", "no_maximizer_of_the_squared_error_leaves_the_reach")
CLIENTS = of_file("population")
FEW = of_file("few_clients")
CONCLUDED = of_file("receipts/conclusion")
REPLIED = of_file("receipts/conclusion", "the_upper_bound_of_a_reply_shares_the_failure_among_all_that_were_invited")
SAMPLED = of_file("sets/thresholds")
MOVED_SETS = of_file("sets/shifted")
NEXT = of_file(
    "next_client",
    "half_of_the_probability_is_for_the_clients_own_bounds_and_half_for_the_population",
    "a_radius_costs_gamma_times_its_square_or_the_slope_times_the_radius",
    "no_moved_population_of_moved_clients_has_a_larger_mean_than_the_mixture_at_the_sum_of_the_radii",
    "certified_error_rates_are_never_below_the_worst_and_need_no_bounds",
)
BY_HAND = of_file(
    "paper_bounds",
    "the_terms_of_the_sandwich_agree_with_a_calculation_by_hand",
    "the_terms_of_robust_generalization_agree_with_a_calculation_by_hand",
    "the_covering_radius_agrees_with_a_calculation_by_hand",
    "the_distances_agree_with_a_calculation_by_hand",
)
TAIL = of_file("paper_bounds", "the_tail_at_the_squared_distance_is_delta")
RATE = of_file("convergence_rate", "the_terms_agree_with_a_calculation_by_hand")
INSIDE = of_file("perturbations", "moves_inside_the_ball_are_within_the_radius_in_w_2")
SAMPLING = of_file("sampling", "all_radii_share_the_probability_that_a_bound_is_wrong")
BETS = of_file(
    "sampling",
    "of_coins_the_moments_tell_all_that_the_plain_capital_does",
    "the_upper_mean_comes_down_to_the_mean_as_fast_as_the_deviation_over_the_root_of_the_size",
    "of_two_clients_the_bound_is_the_smallest_product_of_their_capitals",
    "whatever_the_numbers_are_the_moments_promise_no_less_than_the_plain_capital",
)
MOST = of_file(
    "sampling",
    "each_lane_of_moments_is_cut_at_its_own_most",
    "no_example_of_the_box_gains_more_in_a_network_than_along_its_steepest_line",
    "no_example_of_the_box_has_a_larger_surrogate",
)
RESCALED = of_file("models/layers")
LIPSCHITZ = of_file(
    "models/lipschitz",
    "where_channels_are_sorted_the_gradient_jumps",
    "an_error_is_as_far_as_the_least_lead_over_its_slope",
    "no_move_in_the_plane_within_the_distance_ends_in_an_error",
    "no_move_in_the_plane_gains_more_of_the_margin_loss_than_is_proven",
    "two_outputs_come_apart_by_the_root_of_two_times_what_a_model_says",
    "what_is_proven_of_layers_is_about_one_and_above_their_norms",
)
LOSSES = of_file(
    "tasks/losses",
    "the_margin_loss_bends_most_where_its_offset_is_used_up",
    "value_and_gradient_agree_with_torch",
)
IMAGES = of_file("tasks/augmentation")
TRANSPORT = of_file("weights/distance", "the_distance_is_the_least_cost_of_the_ball")
MEASURED = of_file("measured")
LEMMAS = of_file("convergence_rate", "the_lemmas_agree_with_a_calculation_by_hand")
STRANGERS = of_file("promises/read")
GAINED = of_file(
    "promises/surrogates",
    "an_ascent_that_stops_early_adds_what_it_may_have_missed",
    "no_example_of_the_box_gains_more_than_the_largest_surrogate",
    "no_move_gains_more_than_the_checker_says",
) + of_file(
    "promises/issue",
    "a_promised_error_rate_is_that_of_certify_and_is_recomputed",
    "what_is_promised_follows_from_the_definition_of_the_surrogate",
)
SHARES = of_file("promises/shares", "no_move_gains_more_than_the_shares_say")
SINGULAR = of_file("promises/singular")
FOLLOWS = of_file("promises/next_client_check", "what_follows_is_proven_and_what_is_next_to_it_is_wrong")
FORGED = of_file("promises/forged_receipts", "a_signature_counts_for_its_own_bytes_and_domain_alone")
ONCE = of_file("receipts/receipts", "numbers_about_nearly_the_same_examples_are_given_once")
ROUNDED = of_file("promises/issue", "what_float64_loses_is_less_than_what_is_added")
CHECKER = of_file(
    "promises/issue",
    "every_number_is_checked",
    "an_attack_refutes_what_cannot_be_proven_without_bounds",
    "promises_that_hold_one_by_one_may_not_hold_together",
    "another_model_or_other_examples_are_found",
    "weights_that_sum_to_less_than_1_buy_nothing",
    "one_changed_byte_is_refused",
    "a_client_checks_its_own_numbers_with_its_own_data",
)
AUDIT = of_file(
    "promises/audit",
    "the_same_points_weigh_the_same_wherever_examples_lie",
    "between_published_sizes_the_limit_is_between_theirs",
    "a_shift_is_measured_from_the_federations_own_mean",
    "what_is_certified_and_compared_is_that_of_the_distance_and_the_spread",
    "each_published_number_is_checked_to_the_last_digits",
    "the_distance_is_at_least_that_of_pot_and_at_most_two_spreads_more",
    "a_site_like_the_federation_is_inside_and_one_far_away_is_not",
)
SOUND = of_file(
    "soundness",
    "a_small_ball_is_held_against_a_part_of_what_reaches_far",
    "no_number_is_no_bound_and_a_claim_is_refuted_only_beyond_rounding",
)
EXTREME = of_file("rounding", "extreme_magnitudes_are_refused_or_never_below_the_exact_loss_and_any_float64_one")
RUNNING = of_file(
    "rounding",
    "the_error_of_float32_is_within_the_running_bound_and_its_growth",
    "what_a_hidden_layer_loses_is_carried_to_the_outputs",
    "the_error_of_gradients_is_within_its_bound",
)
ELSEWHERE = of_file("certificates_elsewhere")
PROOFS = (
    ("theory/phi/linear_model.py", "2.0 * gamma >= self._curvature", "4.0 * gamma >= self._curvature", SMALL_PROOFS),
    ("theory/phi/linear_model.py", "square() / (2.0 * modulus)", "square() / (4.0 * modulus)", SMALL_PROOFS),
    ("theory/phi/linear_model.py", "modulus = 2.0 * gamma - self", "modulus = 2.0 * gamma + self", SMALL_PROOFS),
    ("theory/phi/linear_model.py", "outputs, y) - slack", "outputs, y) + slack", SMALL_PROOFS),
    ("theory/phi/linear_model.py", "behind / far).amin(-1)", "behind / far).amax(-1)", ERROR),
    ("theory/phi/incumbents.py", "-torch.ones_like(p[:, :1])", "torch.ones_like(p[:, :1])", SMALL_PROOFS),
    ("theory/phi/incumbents.py", "dual(self.norm), 1) for row", "self.norm, 1) for row", SMALL_PROOFS),
    ("theory/phi/incumbents.py", "square / (4.0 * gamma * gamma)", "square / (2.0 * gamma * gamma)", SMALL_PROOFS),
    ("theory/phi/incumbents.py", "a).sum(-1) - torch.xlogy(p, p)", "a).sum(-1) + torch.xlogy(p, p)", SMALL_PROOFS),
    ("theory/phi/incumbents.py", "rise.amax(-1) - (p * rise)", "rise.amin(-1) - (p * rise)", SMALL_PROOFS),
    ("theory/phi/settled.py", "(s.expm1() - s) / s.square()", "(s.expm1() - s) / (2.0 * s.square())", SETTLED),
    ("theory/phi/settled.py", "top.missed + beyond", "top.missed", SETTLED),
    ("theory/phi/settled.py", "lengths, owner, right)", "lengths, owner, left)", SETTLED),
    ("theory/phi/settled.py", "value + missed + above_tangent", "value + missed - above_tangent", ELLIPSOIDS),
    ("theory/phi/settled.py", "keepdim=True) / weights", "keepdim=True) / (2.0 * weights)", ELLIPSOIDS),
    ("theory/phi/branch_and_bound.py", "ball.gram, 8.0", "ball.gram, 16.0", SMALL_PROOFS),
    ("theory/phi/branch_and_bound.py", "self.linear = a - 2.0 * ", "self.linear = a + 2.0 * ", SMALL_PROOFS),
    ("theory/phi/branch_and_bound.py", "kept = squared_dist", "kept = 2.0 * squared_dist", SMALL_PROOFS),
    ("theory/phi/branch_and_bound.py", "slope.amax(-1) - (weights", "slope.amin(-1) - (weights", SMALL_PROOFS),
    ("theory/phi/branch_and_bound.py", "[rows, :, other]) / 2.0", "[rows, :, other]) / 2.1", CUTS),
    ("theory/phi/branch_and_bound.py", "(2.0 * gamma / most", "(8.0 * gamma / most", SMALL_PROOFS),
    ("theory/phi/lines.py", "clamp_min(0.0) / (2.0 * gamma)", "clamp_min(0.0) / (4.0 * gamma)", LINE),
    ("theory/phi/lines.py", "slope * (top - t[:, :-1])", "slope * (t[:, 1:] - top)", LINE),
    ("theory/phi/lines.py", "torch.cat([slopes, -slopes])", "torch.cat([slopes, slopes])", BOTH_SIDES),
    ("theory/phi/lines.py", "square() / (4.0 * gamma)", "square() / (8.0 * gamma)", BOTH_SIDES),
    ("theory/phi/linear_model.py", "(seen / (gamma - bent)).sum", "(seen / (gamma + bent)).sum", SQUARES),
    ("theory/phi/linear_model.py", "gain / (gamma - bent)[index]", "gain / gamma", SQUARES),
    ("theory/phi/linear_model.py", "/ (gamma - self.limit)", "/ (gamma + self.limit)", SQUARES),
    ("theory/networks/activations.py", "torch.minimum(down, up), torch", "torch.maximum(down, up), torch", ACTIVATIONS),
    ("theory/networks/activations.py", "return [point, -point]", "return [point]", ACTIVATIONS),
    ("theory/networks/activations.py", "self.rise * self.rate * (1.0 - ", "self.rise * (1.0 - ", ACTIVATIONS),
    ("theory/networks/margins.py", "high - low) / 2.0)[:, None]\n", "high - low) / 4.0)[:, None]\n", SMALL_PROOFS),
    ("theory/networks/margins.py", "(strip.high - strip.low) / 2.0", "(strip.high - strip.low) / 4.0", ALONG),
    ("theory/networks/margins.py", "(low + high) / 2.0)[:, None]", "(low - high) / 2.0)[:, None]", ALONG),
    ("theory/networks/margins.py", "widths[-1] * t[:, None])[1]", "widths[-1] * t[:, None])[0]", ALONG),
    ("theory/networks/margins.py", "math.sqrt(features) if", "1.0 if", STEEPEST),
    ("theory/networks/margins.py", "rows = self.rows - self.rows", "rows = self.rows + self.rows", ALONG),
    ("theory/networks/margins.py", "(right - left).clamp_min", "(2.0 * right - left).clamp_min", ALONG),
    ("theory/networks/margins.py", "-behind / slopes", "-2.0 * behind / slopes", LIPSCHITZ),
    ("theory/networks/margins.py", "(slack + 8.0 *", "(8.0 *", LIPSCHITZ),
    ("theory/networks/margins.py", "(slack + 8.0 * (self.terms + 4)", "(slack + 0.0 * (self.terms + 4)", LIPSCHITZ),
    ("theory/networks/margins.py", "(most < 0.0).all(-1)", "(most < 0.0).any(-1)", LIPSCHITZ),
    ("theory/networks/margins.py", "offset + slope * farther", "offset - slope * farther", LIPSCHITZ),
    ("theory/networks/margins.py", "math.sqrt(2.0) * bound", "bound", LIPSCHITZ),
    ("theory/networks/margins.py", "slopes=factor * self.slopes", "slopes=self.slopes", LIPSCHITZ),
    ("theory/certificates/upper.py", "slope / (2.0 * modulus)", "slope / (4.0 * modulus)", REPORTS),
    ("theory/certificates/upper.py", "2.0 * gamma - curvature", "2.0 * gamma + curvature", REPORTS),
    ("theory/certificates/upper.py", "cost = distance.pow(self.power)", "cost = distance", KNAPSACK),
    ("theory/certificates/upper.py", "moved = rest + (distance", "moved = rest - (distance", REPORTS),
    ("theory/certificates/dual.py", "excess) * radius**2", "excess) * radius", DUAL),
    ("theory/certificates/dual.py", "(1.0 - share) * self.loss", "(1.0 + share) * self.loss", REACHED),
    ("theory/certificates/dual.py", "least - reached <=", "reached - least <=", KINK),
    ("theory/certificates/dual.py", "dual.loss(low) - dual.loss(high)", "dual.loss(low) + dual.loss(high)", KINK),
    ("theory/certificates/quantities.py", "radius**2 + value", "radius + value", NETWORK),
    ("theory/certificates/quantities.py", "radii, question.bent / 2.0", "radii, question.bent / 4.0", QUADRATIC),
    ("theory/certificates/quantities.py", "(gamma * radius**2 + phi, gamma", "(gamma * radius + phi, gamma", LEAST),
    ("theory/certificates/quantities.py", "radius ** (power / 2.0)", "radius**power", KNAPSACK),
    ("theory/certificates/certify.py", "(1.0 - confidence) / len(chosen)", "1.0 - confidence", SAMPLING),
    ("theory/certificates/sampling.py", "math.log(1.0 / delta)", "math.log(0.5 / delta)", BETS),
    ("theory/certificates/sampling.py", "math.log(part) + math.fsum", "math.fsum", BETS),
    ("theory/certificates/sampling.py", "(size / reach).log()", "(1.0 / reach).log()", BETS),
    ("theory/certificates/sampling.py", "(reach - mean) / count", "(reach + mean) / count", BETS),
    ("theory/certificates/sampling.py", "mean - variance / room", "mean + variance / room", BETS),
    ("theory/certificates/sampling.py", "(second - mean.square())", "(second - 2.0 * mean.square())", BETS),
    ("theory/certificates/sampling.py", "(1.0 + theta * a * mean)", "(1.0 - theta * a * mean)", BETS),
    ("theory/certificates/sampling.py", "move.value.minimum(most)", "move.value", MOST),
    ("theory/certificates/sampling.py", "2) / (4.0 * gamma)", "2) / (8.0 * gamma)", MOST),
    ("theory/certificates/sampling.py", "bias - bias[label]", "bias", MOST),
    ("theory/certificates/sampling.py", "reach + float(steep) ** 2", "reach - float(steep) ** 2", MOST),
    ("theory/certificates/soundness.py", "reached <= bound + room:", "reached <= 2.0 * bound + room:", SOUND),
    ("theory/certificates/slack.py", "(upper.abs() + gains) + lost + least", "(upper.abs() + gains) + least", EXTREME),
    ("theory/networks/rounding.py", "step.through(*off) + rounded", "step.through(*off)", RUNNING),
    ("theory/networks/rounding.py", "step.through(*off) + rounded", "rounded", RUNNING),
    ("theory/networks/rounding.py", "= step.through(*inputs), step", "= inputs[0], step", RUNNING),
    ("theory/certificates/soundness.py", "budget / cost", "0.0", SOUND),
    ("theory/certificates/mixture.py", "self.weights / self.examples.num_examples,", "self.weights,", SMALL_PROOFS),
    ("theory/certificates/other_spaces.py", "linear.weight @ matrix", "linear.weight @ matrix.T", ELSEWHERE),
    ("theory/constants/layer_by_layer.py", "else math.ceil(k / s)", "else k // s", SMALL_PROOFS),
    ("theory/constants/layer_by_layer.py", "_times(second, _square(slope))", "_times(second, slope)", SMALL_PROOFS),
    ("theory/constants/layer_by_layer.py", "_times(curvature, _square(slope))", "_times(curvature, slope)", LAYERS),
    ("theory/constants/layer_by_layer.py", "math.hypot(*slopes)", "max(slopes)", ORDINARY),
    ("theory/constants/layer_by_layer.py", "first + _times(abs(layer.alpha), second)", "max(first, second)", ORDINARY),
    ("theory/constants/layer_by_layer.py", "jump + own_jump(layer)", "jump", ORDINARY),
    ("promises/known.py", "power = 2.0 if isinstance", "power = 9.0 if isinstance", ORDINARY),
    ("promises/layers.py", "math.log1p(math.exp(-layer.threshold))", "0.0", ORDINARY),
    ("tasks/structure/operations.py", "self._stale |= {each", "self._stale &= {each", UNUSUAL),
    ("tasks/structure/trace.py", "        if tracer.obstacles:", "        if False:", UNUSUAL),
    ("tasks/structured.py", "is_plain(last, nn.Linear) and _is_in_order(last)", "is_plain(last, nn.Linear)", UNKNOWN),
    ("theory/constants/layer_by_layer.py", "(0.25, 0.09623)", "(0.25, 0.048115)", LAYERS),
    ("theory/constants/layer_by_layer.py", "MaxMin: (1.0, math.inf)", "MaxMin: (1.0, 0.0)", LIPSCHITZ),
    ("theory/constants/layer_by_layer.py", "layer.rescale(weight) if", "weight if", LIPSCHITZ),
    ("theory/constants/layer_by_layer.py", "(entries * scale).sum(1) / s", "(entries / scale).sum(1) * s", LIPSCHITZ),
    ("theory/constants/layer_by_layer.py", "entries_of_gram(used) + 2.0", "entries_of_gram(used) - 2.0", LIPSCHITZ),
    ("theory/constants/layer_by_layer.py", "(layer.stride, layer", "((1, 1), layer", LIPSCHITZ),
    ("theory/constants/linear_models.py", "box + self.reach * slope", "box - self.reach * slope", SMALL_PROOFS),
    ("theory/constants/linear_models.py", "math.sqrt(2.0) * missed * radius", "missed * radius", LINEAR),
    ("theory/constants/linear_models.py", "Constant(radius**2 / 2.0, kind", "Constant(radius**2 / 4.0, kind", LINEAR),
    ("theory/constants/linear_models.py", "curvature / 2.0) + math", "curvature / 2.0) - math", LINEAR),
    ("theory/constants/linear_models.py", "spectral * radius + 2.0 * residual", "spectral * radius", SMALL_PROOFS),
    ("theory/constants/linear_models.py", "row**2 / 2.0", "row**2 / 4.0", SMALL_PROOFS),
    ("theory/constants/assumptions.py", "gamma - self.L_zz)\n", "gamma + self.L_zz)\n", SMOOTH),
    ("theory/constants/assumptions.py", "swap / math.sqrt(label_cost)", "swap / label_cost", SWAPPED),
    ("theory/constants/assumptions.py", "else gamma - self.L_zz / 2.0", "else gamma", REACH),
    ("theory/population/intervals.py", "count - rank + 1) >= share", "count - rank) >= share", CLIENTS),
    ("theory/population/intervals.py", "values) + 1) * chance", "values)) * chance", CLIENTS),
    ("theory/population/intervals.py", "kept = max(1.0 / count - left", "kept = max(1.0 / count + left", CLIENTS),
    ("theory/population/intervals.py", "[(width, self.most)]", "[(width / 2.0, self.most)]", CLIENTS),
    ("theory/population/intervals.py", "t * radius + top", "t * radius / 2.0 + top", CLIENTS),
    ("theory/population/intervals.py", "(1.0 + radius) * beyond", "(1.0 + radius / 2.0) * beyond", CLIENTS),
    ("theory/population/levels.py", "Fraction((2 if own_sampling else 1) *", "Fraction(1 *", FEW),
    ("theory/population/levels.py", "* (liars + 1), count + 1)", "* (liars + 1), count + 2)", FEW),
    ("theory/population/levels.py", "* (liars + 1), count + 1)", "* 1, count + 1)", CONCLUDED),
    ("sets/thresholds.py", "(invited + 1) - liars - 1 - (", "(invited + 1) - liars - (", CONCLUDED),
    ("sets/thresholds.py", "(invited + 1) - liars - 1 - (", "(invited + 1) - 1 - (", CONCLUDED),
    ("sets/thresholds.py", "if abs(near) > 1e-9 * (invited + 1):", "if True:", SAMPLED),
    ("sets/thresholds.py", "* (invited + 1)) + liars", "* (invited + 1))", CONCLUDED),
    ("sets/thresholds.py", "* (invited + 1)) + liars", "* invited) + liars", CONCLUDED),
    ("sets/thresholds.py", " - (invited - len(answers))", "", CONCLUDED),
    ("sets/thresholds.py", "failure = float((1 - level) / 2 / invited)", "failure = float((1 - level) / 2)", SAMPLED),
    ("sets/shifted.py", "0.0 if self.gamma is None else self.gamma * self.radius", "0.0 * self.radius", MOVED_SETS),
    ("receipts/conclusion.py", "+ questions.liars - 1]", "- 1]", CONCLUDED),
    ("receipts/conclusion.py", "*[math.inf] * len(self.missing)])", "])", CONCLUDED),
    ("receipts/conclusion.py", "(1 + exact(level)) / 2 if own", "exact(level) if own", CONCLUDED),
    ("receipts/reply.py", ">= limit else (middle, high)", ">= limit / 2.0 else (middle, high)", CONCLUDED),
    ("receipts/reply.py", "(1.0 - level) / 2.0 / invited", "(1.0 - level) / 2.0", REPLIED),
    ("promises/checker.py", "self._claim.confidence_of(row) or 1.0", "0.01", FEW),
    ("theory/population/next_client.py", "self._upper(delta / 2.0)", "self._upper(delta)", NEXT),
    ("theory/population/next_client.py", "math.inf, delta / 2.0)", "math.inf, delta)", NEXT),
    ("theory/population/next_client.py", "(1.0 - confidence) / 2.0", "1.0 - confidence", NEXT),
    ("theory/population/next_client.py", "next_client((1 + exact(confidence)) / 2)", "next_client(confidence)", NEXT),
    ("theory/population/next_client.py", "most = delta / self.count,", "most = delta,", NEXT),
    ("theory/population/next_client.py", "reach = radius + pop", "reach = radius - pop", NEXT),
    ("theory/certificates/quantities.py", "gamma, gamma * row.radius**2)", "gamma, gamma * row.radius**2 / 2.0)", NEXT),
    ("theory/certificates/quantities.py", "row.gamma * row.radius**2)", "row.gamma * row.radius**2 / 2.0)", NEXT),
    ("theory/certificates/quantities.py", "L_z * row.radius)", "L_z * row.radius / 2.0)", NEXT),
    ("theory/population/next_client.py", "mean, self.quantity.largest)", "mean, math.inf)", NEXT),
    ("theory/paper/generalization.py", "24.0 * s * complexity", "12.0 * s * complexity", BY_HAND),
    ("theory/paper/generalization.py", "math.log(2.0 / delta)", "math.log(1.0 / delta)", BY_HAND),
    ("theory/paper/generalization.py", "delta / (2.0 * len(weights))", "delta / 2.0", BY_HAND),
    ("theory/paper/generalization.py", "star / weights[client]", "star * weights[client]", BY_HAND),
    ("theory/paper/generalization.py", "rate ** (2.0 / self.alpha)", "rate ** (1.0 / self.alpha)", TAIL),
    ("theory/paper/sandwich.py", "min(gamma * radius**2, steep", "min(gamma * radius, steep", BY_HAND),
    ("theory/paper/convergence.py", "distance**2 / (2.0 * total), 0.5", "distance**2 / (4.0 * total), 0.5", RATE),
    ("theory/paper/convergence.py", "(2 * steps - 1) / 3.0", "(2 * steps - 1) / 6.0", RATE),
    ("theory/paper/convergence.py", "max(1.0 - spread, 0.0) * drift", "spread * drift", RATE),
    ("theory/paper/convergence.py", "(before**2 - after**2)", "(before**2 + after**2)", LEMMAS),
    ("theory/paper/convergence.py", "spread * noise**2 / 2.0", "spread * noise**2 / 4.0", LEMMAS),
    ("theory/paper/convergence.py", "smoothness * drift / 2.0}", "smoothness * drift}", LEMMAS),
    ("theory/paper/convergence.py", "progress + 4.0 * jitter", "progress + 2.0 * jitter", LEMMAS),
    ("theory/paper/convergence.py", "8.0 * square * steps**2", "8.0 * square * steps", LEMMAS),
    ("theory/paper/convergence.py", "4.0 * square * steps * noise", "2.0 * square * steps * noise", LEMMAS),
    ("theory/paper/measured.py", "self.risk - self.least", "self.risk - self.reached", MEASURED),
    ("theory/paper/measured.py", "self.held_out - self.risk", "self.risk - self.held_out", MEASURED),
    ("theory/paper/measured.py", "value - float(slope @ params)", "value + float(slope @ params)", MEASURED),
    ("theory/paper/measured.py", "- radius * float(slope.norm())", "- radius / 2.0 * float(slope.norm())", MEASURED),
    ("theory/paper/measured.py", "[0] - cost) @ share", "[0] + cost) @ share", MEASURED),
    ("theory/paper/measured.py", "(square / sizes - means", "(square / sizes + means", MEASURED),
    ("theory/paper/measured.py", "(means - mixture.weights @ means)", "(means - means.mean(0))", MEASURED),
    ("theory/paper/perturbations.py", "radius**power * (1.0", "radius * (1.0", INSIDE),
    ("models/layers.py", "sums.clamp_min(TINY).rsqrt()", "(sums / 2.0).clamp_min(TINY).rsqrt()", RESCALED),
    ("models/layers.py", "pairs.abs().sum(-1)", "pairs.sum(-1).abs()", RESCALED),
    ("models/layers.py", "other[1] - one[1]", "other[1] + one[1]", RESCALED),
    ("models/layers.py", "weight.shape[-4] < weight.shape[-3]", "weight.shape[-4] > weight.shape[-3]", RESCALED),
    ("models/layers.py", "weight.norm(dim=-1, keepdim=True)", "weight.norm(dim=-2, keepdim=True)", RESCALED),
    ("models/layers.py", "torch.minimum(first, second)]", "second]", RESCALED),
    ("tasks/rescaling.py", "slope.copy_(back)", "slope.copy_(slope)", RESCALED),
    ("tasks/rescaling.py", "uses.count(id(layer.weight)) > 1", "uses.count(id(layer.weight)) > 2", RESCALED),
    ("tasks/augmentation.py", "(2 * shift + 1)", "(2 * shift)", IMAGES),
    ("tasks/augmentation.py", "x.shape[4] - 1 - columns", "x.shape[4] - columns", IMAGES),
    ("tasks/augmentation.py", "height - down", "height + down", IMAGES),
    ("tasks/losses.py", "(outputs - taken)", "(outputs + taken)", LOSSES),
    ("tasks/losses.py", "self.temperature * CrossEntropy()", "CrossEntropy()", LOSSES),
    ("tasks/losses.py", "norm) / self.temperature", "norm) * self.temperature", LOSSES),
    ("tasks/losses.py", "CrossEntropy().gradient(self", "self.temperature * CrossEntropy().gradient(self", LOSSES),
    ("weights/transport/costs.py", "a.label_cost * _label_distance", "_label_distance", TRANSPORT),
    ("weights/transport/costs.py", "(y[:, None] != other)", "(y[:, None] == other)", TRANSPORT),
    ("weights/transport/costs.py", ".square().sum(2)", ".abs().sum(2)", TRANSPORT),
    ("promises/quantities.py", "margins + 2.0 * outputs.error", "margins - 2.0 * outputs.error", ROUNDED),
    ("promises/quantities.py", "1.0 - gamma * distance", "1.0 - 2.0 * gamma * distance", GAINED),
    ("promises/quantities.py", "far = steepest / gamma", "far = steepest / (4.0 * gamma)", GAINED),
    ("promises/quantities.py", "2.0 * (2.0 * gamma - widest)", "8.0 * (2.0 * gamma - widest)", GAINED),
    ("promises/quantities.py", "square() / (4.0 * gamma)", "square() / (8.0 * gamma)", GAINED),
    ("promises/shares.py", "alone = squares / (4.0 * gamma)", "alone = squares / (5.0 * gamma)", SHARES),
    ("promises/shares.py", "rest * slopes.gather(1, far)", "0.2 * rest * slopes.gather(1, far)", SHARES),
    ("promises/shares.py", "rest * inner.logsumexp(1)", "rest * inner.amax(1)", SHARES),
    ("promises/shares.py", "(level[:, corners] + entropy)", "level[:, corners]", SHARES),
    ("promises/next_client.py", "if low < rank <= high", "if low <= rank <= high", FOLLOWS),
    ("promises/next_client.py", "(count + 1)) + liars", "(count + 1))", FOLLOWS),
    ("promises/next_client.py", "above + asked.liars + 1 <=", "above + asked.liars <=", FOLLOWS),
    ("promises/next_client.py", "if place and is_high_enough(place - 1)", "if False", FOLLOWS),
    ("promises/receipts.py", "if not is_signed(receipt):", "if False:", FORGED),
    ("receipts/answered.py", "0 < changed < ENOUGH", "0 < changed < 2", ONCE),
    ("promises/layers.py", "+ WIDER * float(product)", "", SINGULAR),
    ("promises/layers.py", "return 1.0 + WIDER * float(off", "return 1.0 + 0.0 * float(off", SINGULAR),
    ("promises/known.py", "math.sqrt(inputs) * WIDER if", "WIDER if", GAINED),
    ("promises/read.py", "len(set(names)) != len(names)", "len(set(names)) > len(names)", STRANGERS),
    ("promises/read.py", "math.fsum(weights) - 1.0) > 1e-9", "math.fsum(weights) - 1.0) > 1.0", STRANGERS),
    ("promises/read.py", "data != whole_file(content, signature)", "False", CHECKER),
    ("promises/read.py", "to_bytes(promise.content) != to_bytes(content)", "False", STRANGERS),
    ("promises/verify.py", "digest != claim.model", "digest is None", CHECKER),
    ("promises/checker.py", "!= client.sha256", "is None", CHECKER),
    ("promises/checker.py", "size != client.examples", "size < client.examples", CHECKER),
    ("promises/checker.py", "not bound <= row.value", "not bound <= 2.0 * row.value", CHECKER),
    ("promises/checker.py", "not least <= published", "not least <= 2.0 * published", CHECKER),
    ("promises/checker.py", "refuted, attacked = self._reached(row.radius)", "refuted, attacked = None, 0.0", CHECKER),
    ("promises/checker.py", "float(delta / len(self._claim.rows))", "float(delta)", CHECKER),
    ("promises/checker.py", "mean / min(math.fsum(weights), 1.0)", "mean", CHECKER),
    ("promises/published_labels.py", "share[rows] / total)", "share[rows])", AUDIT),
    ("promises/published_labels.py", "math.sqrt(square)", "square", AUDIT),
    ("promises/published_labels.py", "gamma * radius**2 + value", "gamma * radius + value", AUDIT),
    ("promises/published_labels.py", "label.loss + slope", "label.loss - slope", AUDIT),
    ("promises/published_labels.py", "RESAMPLES * len(cells) - 1)", "RESAMPLES - 1)", AUDIT),
    ("promises/published_labels.py", "not max(off) <= AGREE", "not max(off) <= 1.0", AUDIT),
    ("promises/published_labels.py", "not a >= b", "not 2.0 * a >= b", AUDIT),
    ("promises/audit.py", "slope, far + entry.spread)", "slope, far)", AUDIT),
    ("promises/audit.py", "limit[1] + entry.spread", "limit[1]", AUDIT),
    ("promises/audit.py", "(1.0 - share) * resamples[below]", "share * resamples[below]", AUDIT),
    ("promises/audit.py", "cell.x - cell.share @ cell.x + weights", "cell.x + cell.share @ cell.x + weights", AUDIT),
    ("promises/audit.py", "compared <= self.resample", "compared <= 2.0 * self.resample", AUDIT),
)  # fmt: skip
"""One or more mistakes in each proof: the file, what it says, what it would say, and the tests of it."""


def of_proofs() -> Iterator[Mutant]:
    for number, (path, old, new, tests) in enumerate(PROOFS, 1):
        yield Mutant(f"proof {number}, {path}: {old.strip()} -> {new.strip()}", path, old, new, tests)


def check_tests(mutants: Sequence[Mutant]) -> None:
    """Raise an error if a test cannot be imported without any mistake: every mutant would count as killed."""
    tests = dict.fromkeys(test for mutant in mutants for test in mutant.tests)
    options = ["--collect-only", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", SELECTION]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the tests cannot be collected without a mutant:\n{done.stdout}{done.stderr}")


def hunt(mutants: Sequence[Mutant], jobs: int) -> list[str]:
    """The names of the mutants that live; prints who killed the others."""
    living: list[str] = []

    def judge(mutant: Mutant) -> tuple[Mutant, str | None, float]:
        start = time.perf_counter()
        return mutant, mutant.killer(), time.perf_counter() - start

    with ThreadPoolExecutor(jobs) as pool:
        for mutant, killer, seconds in pool.map(judge, mutants):
            print(f"{'LIVES ' if killer is None else 'killed'} {seconds:5.0f} s  {mutant.name}", flush=True)
            print(f"                {killer or 'by none of ' + ', '.join(mutant.tests)}", flush=True)
            living += [mutant.name] if killer is None else []
    print(f"{len(living)} of {len(mutants)} mutants live")
    return living


def main() -> None:
    parser = argparse.ArgumentParser(description="Which mistakes make test would let live.")
    parser.add_argument("--list", action="store_true", help="print the names of the mutants")
    parser.add_argument("--only", default="", metavar="NAME", help="those whose name has this in it")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count(), help="how many are tried at a time")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path[:0] = [str(SOURCE.parent), str(ROOT)]
    mutants = [mutant for mutant in (*of_lists(), *of_proofs()) if options.only in mutant.name]
    if options.list:
        print("\n".join(mutant.name for mutant in mutants))
    elif not mutants:
        raise SystemExit(f"--only {options.only}: no mutant has that in its name; --list prints them")
    else:
        check_tests(mutants)
        if hunt(mutants, options.jobs):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
