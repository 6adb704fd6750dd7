"""Define the estimators: scikit-learn's conventions around the solver of linear models and :func:`wafl.fit`."""

import itertools
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.extmath import softmax
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import nn

from wafl.base.checks import check_positive
from wafl.base.errors import DataWarning
from wafl.base.norms import check_norm
from wafl.base.options import Choice, Positive
from wafl.data.federation import Federation
from wafl.data.scales import uneven_columns
from wafl.methods.averaging import FedAvg
from wafl.methods.ball import WAFL
from wafl.models import MLR
from wafl.sets.prediction_sets import prediction_sets
from wafl.sets.target import About
from wafl.sklearn.auto_radius import choose_radius
from wafl.sklearn.descent import Array
from wafl.sklearn.linear import solve
from wafl.sklearn.worst_case import Ball
from wafl.theory.certificates.certificate import Certificates, Metric
from wafl.theory.certificates.certify import certify
from wafl.theory.population.next_client import NextClient, next_client
from wafl.train.fit import fit

STEPS, ROUNDS = 5000, 100


class WassersteinEstimator(BaseEstimator, ABC):
    """The common base of :class:`WassersteinClassifier` and :class:`WassersteinRegressor`.

    Args:
        radius: the radius of the ball, in the unit of X; 0 is ordinary learning. ``"auto"`` chooses it for a linear
            model, on held-out clients, or on held-out examples if there are fewer than four clients.
        norm: the ground norm, 1, 2 or inf.
        power: the order of the ball, 1 or 2; for a regression it is 2, because the worst squared error in the ball of
            W_1 is infinite.
        label_cost: the price of changing a label inside the ball; inf keeps labels fixed.
        hidden: the widths of hidden layers. Without hidden layers, the model is linear, and solved to its optimum.
        tol: a linear model is solved once ten steps together lower its worst loss by less than this fraction.
        max_iter: the maximum number of steps of the solver (5,000 by default), or the rounds of a network's training
            (100).
        random_state: the seed of a network's start and of the order of its examples; a linear model draws nothing.
    """

    # `groups` are whose examples they are: with metadata routing, meta-estimators hand them on.
    __metadata_request__fit = {"groups": True}  # noqa: RUF012

    def __init__(
        self,
        radius: float | str = "auto",
        *,
        norm: float = 2,
        power: int = 2,
        label_cost: float = math.inf,
        hidden: Sequence[int] = (),
        tol: float = 1e-9,
        max_iter: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.radius = radius
        self.norm = norm
        self.power = power
        self.label_cost = label_cost
        self.hidden = hidden
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:  # noqa: N803
        """Solve for the best model, or train a network.

        Args:
            X: the examples, one row each.
            y: their labels, of any type, or their targets, one number each.
            groups: the client of each example, for ``radius="auto"`` and :meth:`next_client`; by default a single
                client.
        """
        x, y = self._valid(X, y)
        self._check()
        self.clients_ = _federation(x, y, groups, self._num_classes)
        if uneven := uneven_columns(self.clients_.train, getattr(self, "feature_names_in_", None)):
            warnings.warn(f"{uneven} (sklearn.preprocessing.StandardScaler)", DataWarning, stacklevel=2)
        ball = Ball(0.0, self.norm, self.power, self.label_cost)
        if self.radius == "auto":
            self.radius_ = choose_radius(x, y, _client_indices(groups, len(x))[1], self._num_classes, ball)
        else:
            self.radius_ = float(self.radius)
        if tuple(self.hidden):
            return self._train()
        ball = replace(ball, radius=self.radius_)
        solution = solve(x, y, self._num_classes, ball, self.tol, self.max_iter or STEPS)
        if not solution.converged:
            warnings.warn(
                f"the worst loss still falls after {solution.steps} steps: raise max_iter or tol, or scale X",
                ConvergenceWarning,
                stacklevel=2,
            )
        self.n_iter_, self.worst_loss_ = solution.steps, solution.worst_loss
        self._keep(solution.weight, solution.bias)
        self.model_ = MLR((x.shape[1],), len(solution.bias)).double()
        self.model_.load_state_dict({"1.weight": torch.tensor(solution.weight), "1.bias": torch.tensor(solution.bias)})
        return self

    def certify(self, radii: Sequence[float], *, metric: Metric = "loss") -> Certificates:
        """Bound the expected loss under every distribution within each radius of the training examples.

        Args:
            radii: the radii, in the unit of X.
            metric: ``"loss"``, or ``"error"`` for the error rate of a classifier.
        """
        check_is_fitted(self)
        return certify(
            self.model_,
            self.clients_,
            radii=radii,
            norm=self.norm,
            power=self.power,
            metric=metric,
            label_cost=self.label_cost,
            loss=self._loss,
        )

    def next_client(
        self,
        X: Any,  # noqa: N803
        y: Any,
        groups: Any,
        *,
        radius: float = 0.0,
        metric: Metric = "loss",
        confidence: float | None = None,
    ) -> NextClient:
        """Bound the loss or error of a new client, from clients that did not train.

        Args:
            X: the examples of these clients.
            y: the labels, or targets.
            groups: the client of each example; none of them may have trained.
            radius: the maximum shift of each client's data, in the unit of X.
            metric: ``"loss"``, which needs bounds for some statements, or ``"error"`` of a linear classifier.
            confidence: the probability of each statement; by default as in :func:`wafl.next_client`.
        """
        check_is_fitted(self)
        x: Any = validate_data(self, X, reset=False, dtype=np.float64, order="C")
        unseen = _federation(x, self._targets(y), groups, self._num_classes)
        if known := set(unseen.names) & set(self.clients_.names):
            raise ValueError(f"group {min(known)} has trained: pass groups that did not")
        options: dict[str, Any] = {"norm": self.norm, "metric": metric, "confidence": confidence, "loss": self._loss}
        return next_client(self.model_, self.clients_, unseen, radius=radius, **options)

    def calibrate(
        self,
        X: Any,  # noqa: N803
        y: Any,
        groups: Any = None,
        *,
        coverage: float = 0.9,
        about: About = "example",
        confidence: float | None = None,
        score: str | None = None,
        radius: float = 0.0,
        own_sampling: bool = False,
    ) -> Self:
        """Choose the threshold of :meth:`predict_set` on examples that did not train, and return the estimator.

        Without `groups`, every example is a client, which is split conformal prediction. The result is `sets_`, a
        :class:`wafl.PredictionSets`, which prints its promise.

        Args:
            X: the examples.
            y: the labels, or targets.
            groups: the client of each example; none of them may have trained.
            coverage: the fraction of labels to cover.
            about: ``"example"`` to cover the next example of the next client, ``"client"`` to cover the fraction of the
                next client's examples with a confidence.
            confidence: the confidence of a promise about the next client, as in :func:`wafl.prediction_sets`.
            score: the score, as in :func:`wafl.prediction_sets`.
            radius: the maximum shift of the next client's examples, in the unit of X and the estimator's norm.
            own_sampling: if True, a promise about the next client is about its distribution.
        """
        check_is_fitted(self)
        x: Any = validate_data(self, X, reset=False, dtype=np.float64, order="C")
        one_by_one = [f"example {index}" for index in range(len(x))]
        clients = _federation(x, self._targets(y), one_by_one if groups is None else groups, self._num_classes)
        trained = self.clients_
        if groups is None or trained.num_clients == 1:
            trained = replace(trained, names=tuple(f"trained {index}" for index in range(trained.num_clients)))
        options: dict[str, Any] = {"coverage": coverage, "about": about, "confidence": confidence, "score": score}
        shift: dict[str, Any] = {"radius": radius, "norm": self.norm, "power": self.power, "own_sampling": own_sampling}
        self.sets_ = prediction_sets(self.model_, clients, training=trained, **options, **shift)
        return self

    def predict_set(self, X: Any) -> Array:  # noqa: N803
        """Return the prediction sets that :meth:`calibrate` prepared.

        For a classifier, ``[n, C]`` is True for each class of ``classes_`` in the set. For a regression, ``[n, 2]`` are
        the ends of intervals.
        """
        check_is_fitted(self, "sets_", msg="call calibrate(X, y) before predict_set(X)")
        x: Any = validate_data(self, X, reset=False, dtype=np.float64, order="C")
        return self.sets_.predict(x).numpy()

    _loss: str
    _num_classes: int | None

    @abstractmethod
    def _valid(self, X: Any, y: Any) -> tuple[Array, Array]:  # noqa: N803
        """Return examples to train on, and their targets in the model's form."""

    @abstractmethod
    def _targets(self, y: Any) -> Array:
        """Return targets in the model's form: classes as numbers from 0."""

    @abstractmethod
    def _keep(self, weight: Array, bias: Array) -> None:
        """Set ``coef_`` and ``intercept_``, in the shapes of scikit-learn's linear models."""

    def _train(self) -> Self:
        """Train a network in rounds with all clients."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        clients, self.n_iter_ = self.clients_, self.max_iter or ROUNDS
        options: dict[str, Any] = {"norm": self.norm, "power": self.power, "label_cost": self.label_cost}
        method = WAFL(radius=self.radius_, **options) if self.radius_ > 0 else FedAvg()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            widths = [*clients.input_shape, *self.hidden, clients.num_outputs]
            layers = [layer for pair in itertools.pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
            network = nn.Sequential(*layers[:-1])
        schedule: dict[str, Any] = {"rounds": self.n_iter_, "local_epochs": 1, "learning_rate": 0.1, "seed": seed}
        run = fit(network, clients, method, loss=self._loss, momentum=0.9, progress=False, **schedule)
        self.model_ = run.model.double().eval()
        return self

    def _outputs(self, X: Any) -> Array:  # noqa: N803
        """Return the model's outputs, ``[n, K]``."""
        check_is_fitted(self)
        x: Any = validate_data(self, X, reset=False, dtype=np.float64, order="C")
        with torch.no_grad():
            return self.model_(torch.tensor(x)).numpy()

    def _check(self) -> None:
        check_norm(self.norm)
        Choice((1, 2)).check("power", self.power)
        Positive("; inf keeps labels", infinite=True).check("label_cost", self.label_cost)
        check_positive("tol", self.tol)
        if self.radius != "auto" and (isinstance(self.radius, str) or not 0 <= self.radius < math.inf):
            raise ValueError(f"radius={self.radius!r} must be a number of at least 0, in the unit of X, or 'auto'")


class WassersteinClassifier(ClassifierMixin, WassersteinEstimator):
    """A classifier with the smallest worst expected cross-entropy in a Wasserstein ball.

    The ball is around the training examples of all clients together; :class:`WassersteinEstimator` has the options.
    After ``fit``: ``classes_``, ``radius_``, ``worst_loss_``, ``coef_`` and ``intercept_`` (of a linear model),
    ``model_`` (a torch module with one output per class), ``clients_`` (the training examples) and ``n_iter_``.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = WassersteinClassifier(radius=0.2).fit(X[:100], y[:100])
    >>> float(model.score(X[:100], y[:100])), model.certify([0.2])[0].value < 1.02 * model.worst_loss_
    (1.0, True)
    """

    _loss = "cross_entropy"

    def _valid(self, X: Any, y: Any) -> tuple[Array, Array]:  # noqa: N803
        valid: Any = validate_data(self, X, y, dtype=np.float64, order="C")
        x, labels = valid
        check_classification_targets(labels)
        self.classes_, y = np.unique(labels, return_inverse=True)
        self._num_classes = len(self.classes_)
        if self._num_classes < 2:
            raise ValueError("this classifier needs at least two classes, and the labels have one class")
        return x, y

    def decision_function(self, X: Any) -> Array:  # noqa: N803
        """Return the outputs of each class; for two classes, the lead of the second class."""
        outputs = self._outputs(X)
        return outputs[:, 1] - outputs[:, 0] if outputs.shape[1] == 2 else outputs

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """Return the probability of each class, in the order of ``classes_``."""
        return softmax(self._outputs(X))

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the class with the largest output."""
        outputs = self._outputs(X)
        return self.classes_[outputs.argmax(-1)]

    def _targets(self, y: Any) -> Array:
        labels = column_or_1d(y)
        if len(strange := np.setdiff1d(labels, self.classes_)):
            raise ValueError(f"label {strange[0]!r} was not among the classes that trained: {self.classes_.tolist()}")
        return np.searchsorted(self.classes_, labels)

    def _keep(self, weight: Array, bias: Array) -> None:
        two = len(bias) == 2
        self.coef_ = weight[1:] - weight[:1] if two else weight
        self.intercept_ = bias[1:] - bias[:1] if two else bias


class WassersteinRegressor(RegressorMixin, WassersteinEstimator):
    """A regression with the smallest worst expected squared error in a Wasserstein ball.

    For a linear model this error is ``(sqrt(E[r^2]) + radius ||w||_*)^2``. :class:`WassersteinEstimator` has the
    options. After ``fit``: ``radius_``, ``worst_loss_``, ``coef_`` and ``intercept_`` (of a linear model), ``model_``
    (a torch module), ``clients_`` (the training examples) and ``n_iter_``.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = WassersteinRegressor(radius=0.005).fit(X, y)
    >>> model.certify([0.005])[0].value < 1.001 * model.worst_loss_
    True
    """

    _loss, _num_classes = "squared_error", None

    def _valid(self, X: Any, y: Any) -> tuple[Array, Array]:  # noqa: N803
        if self.power == 1:
            raise ValueError("power=1: the worst squared error in the ball of W_1 is infinite; use power=2")
        valid: Any = validate_data(self, X, y, dtype=np.float64, order="C", y_numeric=True)
        x, targets = valid
        return x, targets.astype(np.float64)

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the predicted targets."""
        return self._outputs(X)[:, 0]

    def _targets(self, y: Any) -> Array:
        return column_or_1d(y).astype(np.float64)

    def _keep(self, weight: Array, bias: Array) -> None:
        self.coef_, self.intercept_ = weight[0], float(bias[0])


def _client_indices(groups: Any, count: int) -> tuple[Array, Array]:
    """Return the names of the clients, and the index of the client of each of ``count`` examples."""
    whose = np.zeros(count, dtype=int) if groups is None else column_or_1d(groups)
    names, indices = np.unique(whose, return_inverse=True)
    return names, indices


def _federation(x: Array, y: Array, groups: Any, num_classes: int | None) -> Federation:
    """Return a federation of the examples, client by client."""
    names, indices = _client_indices(groups, len(x))
    check_consistent_length(x, y, indices)
    order = np.argsort(indices, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(indices))])
    return Federation.from_offsets(
        x[order], y[order], offsets, names=[str(name) for name in names], num_classes=num_classes, test_fraction=0.0
    )
