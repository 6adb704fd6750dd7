"""Express a certificate, or a statement about the next client, in one sentence that a person can repeat."""

from collections.abc import Sequence

from wafl.base.describe import percent, rounded_up
from wafl.promises.promise import Claim, Promise


def at_the_next_client(
    metric: str, value: float, confidence: float, *, own_sampling: bool, moved: str = "", proven: bool = True
) -> str:
    """Return the sentence about the next client, on its distribution if ``own_sampling``, or on its examples.

    >>> at_the_next_client("error", 0.22225, 0.95, own_sampling=False)
    'At the next client, at most 22.3% of its examples are misclassified, with 95% confidence.'
    >>> at_the_next_client("loss", 0.5, 0.83, own_sampling=True, moved="0.1 (l2, volts)")
    'At the next client, the expected loss is at most 0.5000, with 83% confidence, if examples move by 0.1 (l2, volts).'
    """
    if own_sampling:
        what = _at_most(metric, value, "future examples", "the expected loss")
    else:
        what = _at_most(metric, value, "its examples", "the mean loss of its examples")
    moves = f", if examples move by {moved}" if moved else ""
    return f"At the next client, {what}{_with(confidence)}{moves}.{_doubt(proven)}"


def sentence(promise: Promise) -> str:
    """Return the sentence of a certificate: about its smallest distance above 0, or about the next client."""
    claim, unit = promise.parts.claim, promise.facts.unit or "the unit of the data"
    proven = promise.parts.attested is None
    for row in claim.rows:
        if row.about == "next":
            moved = f"{row.radius:g} ({claim.norm}, {unit})" if row.radius else ""
            level = claim.confidence_of(row) or 0.0
            return at_the_next_client(
                claim.metric, row.value, level, own_sampling=claim.own_sampling, moved=moved, proven=proven
            )
    return _on_moved_data(claim, unit, proven=proven)


def _on_moved_data(claim: Claim, unit: str, *, proven: bool) -> str:
    row = min(claim.rows, key=lambda each: (each.radius == 0, each.radius))
    where = f"If the clients' data move by at most {row.radius:g} ({claim.norm}, {unit})"
    if row.radius == 0:
        where = "On the clients' data"
    what = _at_most(claim.metric, row.value, "the examples", "the expected loss")
    return f"{where}, {what}{_with(claim.confidence_of(row))}.{_doubt(proven)}"


def _at_most(metric: str, value: float, examples: str, loss: str) -> str:
    if metric == "error":
        return f"at most {rounded_up(100.0 * value, 1)}% of {examples} are misclassified"
    return f"{loss} is at most {rounded_up(value)}"


def _with(confidence: float | None) -> str:
    return "" if confidence is None else f", with {percent(confidence)} confidence"


def _doubt(proven: bool) -> str:
    return "" if proven else " This is an estimate, not proven."


def why_published_differs(pairs: Sequence[tuple[float, float]], confident: bool) -> str:
    """Explain how far the values of a certificate file, the first of each pair, are from the values proven before."""
    more = [0.0, *(value / bound - 1.0 for value, bound in pairs if bound > 0)]
    larger, smaller = f"{max(more):.1%}", f"{abs(min(more)):.1%}"
    sizes = f"{larger} larger"
    if smaller != "0.0%":
        sizes = f"{smaller} smaller{f' or {sizes}' if larger != '0.0%' else ''}; both are proven"
    own = " and with its own gammas and bets" if confident else ""
    return (
        f"published is what the file states: the checker proves it by itself, with simpler proofs{own}, so it "
        f"is up to {sizes}"
    )
