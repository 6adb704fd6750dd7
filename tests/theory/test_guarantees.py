"""What is promised about a run: each row is what its own function says, or why it says nothing."""

from dataclasses import replace

import pytest

import wafl
from wafl.theory import certify
from wafl.theory.summary import promised


@pytest.fixture(scope="module")
def trained():
    clients = wafl.load_dataset("digits").partition(num_clients=60, iid=True)
    seen, unseen = clients.hold_out(0.7)
    run = wafl.fit(wafl.models.mlr(seen), seen, wafl.FedAvg(), rounds=1, local_steps=1, learning_rate=0.1)
    return run, seen, unseen


@pytest.mark.parametrize("metric", ["loss", "error"])
def test_each_promise_is_that_of_its_own_function(trained, metric):
    run, seen, unseen = trained
    certificates = certify(run, seen, radii=[0.0, 0.2], metric=metric)
    sample, distributions, mean, following = promised(run, seen, unseen, certificates, 1, delta=0.1)
    options = {"metric": metric, "confidence": 0.9}
    beyond = certify(run, seen, radii=[0.2], split="test", achieved=False, **options)[0]
    others = wafl.next_client(run, seen, unseen, radius=0.2, **options)
    assert [sample.value, distributions.value] == [certificates.best_proven(certificates[1]), beyond.best]
    assert [mean.value, following.value] == [others.mean(), others.next()]
    assert [each.probability for each in (sample, distributions, mean, following)] == [1.0, 0.9, 0.9, 0.9]
    assert certificates[1].achieved <= sample.value <= min(distributions.value, following.value)
    assert "times what is reached inside" in sample.why
    assert f"the largest of the {unseen.num_clients} that were held out" in following.why


def test_what_is_not_promised_says_why(trained):
    run, seen, unseen = trained
    result = certify(run, seen, radii=[0.2], achieved=False)
    boundless = replace(seen, bounds=None)
    _, distributions, mean, following = promised(run, boundless, None, result, 0)
    assert distributions.value is None
    assert "confidence needs bounds of the data" in distributions.why
    assert mean.value is following.value is None
    assert "no client was held out of training" in mean.why
    few = unseen.set_apart(range(4, unseen.num_clients))[0]
    *_, following = promised(run, seen, few, result, 0)
    assert following.value is None
    assert "clients" in following.why
