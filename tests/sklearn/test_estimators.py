"""The estimators where scikit-learn's users have them: pipelines, searches, frames; clients, certificates, networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn
from numpy.typing import NDArray
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from wafl.sklearn import WassersteinClassifier, WassersteinRegressor

Array = NDArray[Any]


def drawn(clients: int = 6, seed: int = 0) -> tuple[Array, Array, Array]:
    """Two classes of 3 features, of clients that differ by their means."""
    generator = np.random.default_rng(seed)
    groups = np.repeat(np.arange(clients), 12)
    x = generator.normal(size=(len(groups), 3)) + generator.normal(size=(clients, 3))[groups]
    return x, np.where(x @ [1.0, -1.0, 0.5] + generator.normal(size=len(x)) > 0, "yes", "no"), groups


def seen_groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of clients of each fit from now on."""
    counts: list[int] = []
    fit = WassersteinClassifier.fit

    def counted(self: Any, X: Any, y: Any, groups: Any = None) -> Any:  # noqa: N803
        counts.append(1 if groups is None else len(np.unique(groups)))
        return fit(self, X, y, groups)

    monkeypatch.setattr(WassersteinClassifier, "fit", counted)
    return counts


@pytest.mark.parametrize("routing", [True, False])
def test_a_search_over_radii_with_held_out_clients_hands_clients_on_if_metadata_are_routed(
    routing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, groups = drawn()
    counts = seen_groups(monkeypatch)
    with sklearn.config_context(enable_metadata_routing=routing):
        pipeline = make_pipeline(StandardScaler(), WassersteinClassifier(tol=1e-4))
        grid = {"wassersteinclassifier__radius": [0.05, 0.2]}
        search = GridSearchCV(pipeline, grid, cv=GroupKFold(3)).fit(x, y, groups=groups)
    assert search.best_score_ > 0.6
    assert counts == ([4] * 6 + [6] if routing else [1] * 7)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_give_the_same_model_and_keep_their_columns(library: str) -> None:
    frames: Any = pytest.importorskip(library)
    x, y, groups = drawn()
    plain = WassersteinClassifier(0.1).fit(x, y, groups)
    frame = frames.DataFrame({name: x[:, column] for column, name in enumerate(["a", "b", "c"])})
    model: Any = WassersteinClassifier(0.1).fit(frame, frames.Series(y.tolist()), groups=frames.Series(groups))
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(model.predict_proba(frame), plain.predict_proba(x))


def test_a_regression_with_noise_columns_is_as_good_as_with_decay() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(160, 30))
    y = x[:, 0] + 0.5 * x[:, 1] + random.normal(size=160)
    model = WassersteinRegressor().fit(x[:60], y[:60])
    error = np.mean((model.predict(x[60:]) - y[60:]) ** 2)
    decay = RidgeCV(np.logspace(-3, 5, 33)).fit(x[:60], y[:60])
    assert error < 1.05 * np.mean((decay.predict(x[60:]) - y[60:]) ** 2)
    assert error < np.mean((y[60:] - y[:60].mean()) ** 2)


def test_a_regression_on_noise_alone_is_constant() -> None:
    random = np.random.default_rng(1)
    x, y = random.normal(size=(40, 30)), random.normal(size=40)
    assert np.abs(WassersteinRegressor().fit(x, y).coef_).max() < 0.05


def test_the_solver_draws_nothing_and_a_network_draws_from_its_random_state() -> None:
    x, y, groups = drawn()
    one, again = (WassersteinClassifier(0.1, random_state=seed).fit(x, y).coef_ for seed in (0, 1))
    np.testing.assert_array_equal(one, again)
    kept: dict[str, Any] = {"hidden": (8,), "max_iter": 20}
    first, second, other = (
        WassersteinClassifier(0.1, **kept, random_state=seed).fit(x, y, groups) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first.predict_proba(x), second.predict_proba(x))
    assert not np.array_equal(first.predict_proba(x), other.predict_proba(x))
    assert first.score(x, y) > 0.7
    assert first.certify([0.1])[0].value > 0.0


def test_a_network_regresses() -> None:
    x, _, groups = drawn()
    y = np.abs(x[:, 0])
    model = WassersteinRegressor(0.05, hidden=(16,), random_state=0, max_iter=60).fit(x, y, groups)
    assert model.score(x, y) > 0.6


def test_the_next_client_is_judged_by_groups_that_did_not_train() -> None:
    x, y, groups = drawn(clients=60)
    seen = groups < 20
    model = WassersteinClassifier(0.1).fit(x[seen], y[seen], groups[seen])
    result = model.next_client(x[~seen], y[~seen], groups[~seen], metric="error", radius=0.1)
    assert len(result.names) == 40
    assert result.share(0.9, own_sampling=False) <= 1.0
    with pytest.raises(ValueError, match="group 19 has trained"):
        model.next_client(x[groups > 18], y[groups > 18], groups[groups > 18])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"radius": -1.0}, "radius=-1.0 must be"),
        ({"radius": "large"}, "or 'auto'"),
        ({"power": 3}, "power=3"),
        ({"label_cost": 0.0}, "label_cost=0.0"),
    ],
)
def test_wrong_options_are_refused(change: dict[str, Any], complaint: str) -> None:
    x, y, _ = drawn()
    options: dict[str, Any] = {"radius": 0.1, **change}
    with pytest.raises(ValueError, match=complaint):
        WassersteinClassifier(**options).fit(x, y)


def test_a_regression_in_the_ball_of_w_1_is_refused() -> None:
    x, _, _ = drawn()
    with pytest.raises(ValueError, match="infinite"):
        WassersteinRegressor(0.1, power=1).fit(x, x[:, 0])
