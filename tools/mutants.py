"""Break the package on purpose, in many places, and say which mistakes ``make test`` would let live.

    .venv/bin/python tools/mutants.py                      every mutant, two at a time (ten minutes)
    .venv/bin/python tools/mutants.py --list               their names
    .venv/bin/python tools/mutants.py --only FedProx       those whose name has this word

Each named method becomes FedAvg, each server the mean, each rule equal weights, each local step plain descent, each
objective and attack none; and each proof has a mutant or more with a wrong sign, a wrong factor or an off-by-one. A
mutant is made while a module is imported, in a process of its own: no file is changed. Of the tests that ``make test``
runs, those that can see it are tried, until one fails. It ends with an error if a mutant lives: write a test for it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
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
"""What ``make test`` runs, without what starts processes; ``--one-case`` does the rest."""
LIMIT = 300
"""After so many seconds a mutant that never ends counts as killed."""
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
        found, answer = PROCESSES.Pipe(duplex=False)
        process = PROCESSES.Process(target=run_inside, args=(self, answer))
        process.start()
        answer.close()
        if not found.poll(LIMIT):
            process.kill()
            return f"a test takes longer than {LIMIT} s"
        code, failed, output = found.recv()
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
    place, usual = str(SOURCE / mutant.path), SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        return compile(mutant.source(), place, "exec") if self.path == place else usual(self, fullname)

    SourceFileLoader.get_code = get_code
    sys.dont_write_bytecode = False  # or every process compiles the package anew
    os.chdir(ROOT)
    options = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--tb=short", "--one-case", "-m", SELECTION]
    first = FirstFailure()
    with redirect_stdout(StringIO()) as output:
        code = pytest.main([*options, *mutant.tests], plugins=[first])
    answer.send((code, first.name, output.getvalue()))


def replaced(kind: type, methods: Mapping[str, str]) -> str:
    """Code for the end of a file: these methods of a class, each a lambda or a name, instead of its own."""
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
    from wafl.attacks import FGSM, PGD, WassersteinShift
    from wafl.attacks.autoattack import AutoAttack
    from wafl.local import LOCAL_STEPS
    from wafl.servers import AGGREGATES, OPTIMIZERS
    from wafl.weights import RULES

    method = small("a_named_method", "{}")
    for name in wafl.METHODS:
        if name != "FedAvg":
            new = f"METHODS[{name!r}].options.parts = lambda self: {{}}"
            yield Mutant(f"method {name} is FedAvg", "methods/__init__.py", "", new, (method.format(name),))
    for name, server in OPTIMIZERS.items():
        new = replaced(server, {"apply": "lambda self, params, mean, vectors: (mean, vectors)"})
        yield Mutant(f"server {name} is the mean", file_of(server), "", new, (small("a_server", name),))
    mean = "lambda self, params, weights, models: (weights / weights.sum()).to(models) @ models"
    for name, server in AGGREGATES.items():
        new = replaced(server, {"aggregate": mean})
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
    for attack in (PGD, FGSM, WassersteinShift, AutoAttack):
        new, tests = replaced(attack, still), ("tests/attacks/test_small_references.py",)
        yield Mutant(f"attack {attack.__name__} is none", file_of(attack), "", new, tests)


PHI = ("tests/theory/test_small_proofs.py", "tests/theory/test_phi.py")
NETWORKS = ("tests/theory/test_activations.py", "tests/theory/test_margins.py", "tests/theory/test_never_below.py")
CERTIFICATES = ("tests/theory/test_small_references.py", "tests/theory/test_certificates.py")
SAMPLING = ("tests/theory/test_sampling.py",)
SOUND = ("tests/theory/test_soundness.py",)
ELSEWHERE = ("tests/theory/test_certificates_elsewhere.py",)
PROOFS = (
    ("theory/phi/linear_model.py", "2.0 * gamma >= self._curvature", "4.0 * gamma >= self._curvature", PHI),
    ("theory/phi/linear_model.py", "square() / (2.0 * modulus)", "square() / (4.0 * modulus)", PHI),
    ("theory/phi/linear_model.py", "modulus = 2.0 * gamma - self", "modulus = 2.0 * gamma + self", PHI),
    ("theory/phi/linear_model.py", "outputs, y) - slack", "outputs, y) + slack", PHI),
    ("theory/phi/linear_model.py", "(1.0 - gamma * square)", "(1.0 - 2.0 * gamma * square)", PHI),
    ("theory/phi/class_pull.py", "-torch.ones_like(p[:, :1])", "torch.ones_like(p[:, :1])", PHI),
    ("theory/phi/class_pull.py", "dual(self.norm), 1) for row", "self.norm, 1) for row", PHI),
    ("theory/phi/incumbents.py", "square / (4.0 * gamma**2)", "square / (2.0 * gamma**2)", PHI),
    ("theory/phi/incumbents.py", "a).sum(-1) - torch.xlogy(p, p)", "a).sum(-1) + torch.xlogy(p, p)", PHI),
    ("theory/phi/incumbents.py", "rise.amax(-1) - (p * rise)", "rise.amin(-1) - (p * rise)", PHI),
    ("theory/phi/settled.py", "(s.expm1() - s) / s.square()", "(s.expm1() - s) / (2.0 * s.square())", PHI),
    ("theory/phi/settled.py", "found.missed + beyond", "found.missed", PHI),
    ("theory/phi/settled.py", "lengths, owner, right)", "lengths, owner, left)", PHI),
    ("theory/phi/ellipsoids.py", "value + missed + above_tangent", "value + missed - above_tangent", PHI),
    ("theory/phi/ellipsoids.py", "keepdim=True) / weights", "keepdim=True) / (2.0 * weights)", PHI),
    ("theory/phi/concave_part.py", "8.0 * gamma", "16.0 * gamma", PHI),
    ("theory/phi/branch_and_bound.py", "self.linear = a - 2.0 * ", "self.linear = a + 2.0 * ", PHI),
    ("theory/phi/branch_and_bound.py", "kept = squared_dist", "kept = 2.0 * squared_dist", PHI),
    ("theory/phi/branch_and_bound.py", "slope.amax(-1) - (weights", "slope.amin(-1) - (weights", PHI),
    ("theory/phi/branch_and_bound.py", "(2.0 * gamma / most", "(8.0 * gamma / most", PHI),
    ("theory/phi/lines.py", "clamp_min(0.0) / (2.0 * gamma)", "clamp_min(0.0) / (4.0 * gamma)", PHI),
    ("theory/phi/lines.py", "slope * (top - t[:, :-1])", "slope * (t[:, 1:] - top)", PHI),
    ("theory/phi/coordinates.py", "torch.cat([slopes, -slopes])", "torch.cat([slopes, slopes])", PHI),
    ("theory/phi/coordinates.py", "square() / (4.0 * gamma)", "square() / (8.0 * gamma)", PHI),
    ("theory/phi/squared_error.py", "(seen / (gamma - bent)).sum", "(seen / (gamma + bent)).sum", PHI),
    ("theory/phi/squared_error.py", "gain / (gamma - bent)[place]", "gain / gamma", PHI),
    ("theory/phi/squared_error.py", "/ (gamma - self.limit)", "/ (gamma + self.limit)", PHI),
    ("theory/networks/activations.py", "torch.minimum(down, up), torch", "torch.maximum(down, up), torch", NETWORKS),
    ("theory/networks/activations.py", "return [place, -place]", "return [place]", NETWORKS),
    ("theory/networks/activations.py", "self.rise * self.rate * (1.0 - ", "self.rise * (1.0 - ", NETWORKS),
    ("theory/networks/margin_lines.py", "(high - low) / 2.0)[:, None]\n", "(high - low) / 4.0)[:, None]\n", NETWORKS),
    ("theory/networks/margin_lines.py", "(strip.high - strip.low) / 2.0", "(strip.high - strip.low) / 4.0", NETWORKS),
    ("theory/networks/margin_lines.py", "(low + high) / 2.0)[:, None]", "(low - high) / 2.0)[:, None]", NETWORKS),
    ("theory/networks/margin_lines.py", "widths[-1] * t[:, None])[1]", "widths[-1] * t[:, None])[0]", NETWORKS),
    ("theory/networks/margins.py", "math.sqrt(features) if", "1.0 if", NETWORKS),
    ("theory/networks/margins.py", "self.rows - self.rows[y[here]]", "self.rows + self.rows[y[here]]", NETWORKS),
    ("theory/networks/margins.py", "(right - left).clamp_min", "(2.0 * right - left).clamp_min", NETWORKS),
    ("theory/certificates/upper.py", "slope / (2.0 * modulus)", "slope / (4.0 * modulus)", CERTIFICATES),
    ("theory/certificates/upper.py", "2.0 * gamma - curvature", "2.0 * gamma + curvature", CERTIFICATES),
    ("theory/certificates/upper.py", "cost = distance.pow(self.power)", "cost = distance", CERTIFICATES),
    ("theory/certificates/upper.py", "moved = rest + (distance", "moved = rest - (distance", CERTIFICATES + SOUND),
    ("theory/certificates/dual.py", "excess) * radius**2", "excess) * radius", CERTIFICATES),
    ("theory/certificates/dual.py", "(1.0 - share) * self._loss", "(1.0 + share) * self._loss", CERTIFICATES),
    ("theory/certificates/network_bound.py", "radius**2 + value", "radius + value", NETWORKS + CERTIFICATES),
    ("theory/certificates/network_bound.py", "radii, bent / 2.0", "radii, bent / 4.0", CERTIFICATES),
    ("theory/certificates/certify.py", "(gamma * radius**2 + phi, gamma", "(gamma * radius + phi, gamma", CERTIFICATES),
    ("theory/certificates/certify.py", "radius ** (power / 2.0)", "radius**power", CERTIFICATES),
    ("theory/certificates/certify.py", "(1.0 - confidence) / len(chosen)", "1.0 - confidence", SAMPLING),
    ("theory/certificates/sampling.py", "math.log(2.0 / delta)", "math.log(1.0 / delta)", SAMPLING),
    ("theory/certificates/sampling.py", "self.most / 3.0", "self.most / 6.0", SAMPLING),
    ("theory/certificates/sampling.py", "second - 2.0 * center", "second - center", SAMPLING),
    ("theory/certificates/sampling.py", "math.sqrt(spread + far) + math.sqrt(far)", "math.sqrt(spread)", SAMPLING),
    ("theory/certificates/sampling.py", "reach + float(steep) ** 2", "reach - float(steep) ** 2", SAMPLING),
    ("theory/certificates/soundness.py", "reached <= bound + room()", "reached <= 2.0 * bound + room()", SOUND),
    ("theory/certificates/soundness.py", "budget / cost", "0.0", SOUND),
    ("theory/certificates/mixture.py", "self.weights / self.examples.num_examples,", "self.weights,", CERTIFICATES),
    ("theory/certificates/other_spaces.py", "linear.weight @ matrix", "linear.weight @ matrix.T", ELSEWHERE),
    ("theory/certificates/rounding.py", "return 4.0 * (max(sizes)", "return 0.0 * (max(sizes)", ("tests/promises",)),
)  # fmt: skip
"""One or more mistakes in each proof: the file, what it says, what it would say, and the tests of it."""


def of_proofs() -> Iterator[Mutant]:
    for number, (path, old, new, tests) in enumerate(PROOFS, 1):
        yield Mutant(f"proof {number}, {path}: {old.strip()} -> {new.strip()}", path, old, new, tests)


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
    elif hunt(mutants, options.jobs):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
