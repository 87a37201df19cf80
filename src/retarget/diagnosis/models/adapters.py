"""A user's model, whatever library it comes from, behind one interface: learn rows, predict rows.

What a model is given: the features as the diagnosis prepares them (`Stream.X`: columns as numbers,
standardised unless `standardise=False`), in mini-batches of `batch_size` rows, and

* for numbers, the targets as prepared (`Stream.Y`: standardised as well);
* for classes, a classifier with `partial_fit` or `learn_one` gets the classes' names (a classifier
  of river for two classes: False and True, where True is the second class). All classes are
  announced at the first `partial_fit`. A regressor or a torch module gets one output for each
  class, 1 for the row's own and 0 for the others.

A regressor of one output gets a copy of itself for each of several targets. A river model sees one
row at a time, as a dict by feature names, whatever the batch size. A model that cannot predict
before it has learned anything is taken to predict 0.
"""

import copy
import inspect
import random
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from retarget.diagnosis.stream import Stream
from retarget.errors import InvalidInputError

PREDICTED_AT_ONCE = 4096  # rows

Advance = Callable[[int], None]  # called with the number of rows that are done
Loss = Callable[[Tensor, Tensor], Tensor]


class ModelFailedError(Exception):
    """The user's model raised an error, or gave something that is not a prediction."""


class OnlineModel(ABC):
    """A model of the user's that learns a few rows at a time.

    Args:
        name: What it is called.
        stream: The stream that it is for: names of features and targets, their kind and number.
        batch_size: Rows that it learns at once.

    Attributes:
        learned: Rows learned so far.
        quick: Whether learning many rows in turn costs next to nothing.
    """

    quick = False

    def __init__(self, name: str, stream: Stream, batch_size: int) -> None:
        self.name, self.batch_size, self.outputs = name, batch_size, stream.Y.shape[1]
        self.kind, self.classes = stream.kind, list(stream.target_names)
        self.features = stream.feature_names
        self.learned = 0

    def learn(self, X: np.ndarray, Y: np.ndarray) -> None:
        """Learns rows (m, d) with targets (m, c), at once.

        Raises:
            ModelFailedError: The model did.
        """
        with _failures_of(self, f"learning row {self.learned + 1:,}"):
            self._learn(X, Y)
        self.learned += len(X)

    def learn_in_turn(self, X: np.ndarray, Y: np.ndarray, advance: Advance) -> None:
        """Learns any number of rows, one mini-batch after another.

        Raises:
            ModelFailedError: The model did.
        """
        for start in range(0, len(X), self.batch_size):
            rows = slice(start, start + self.batch_size)
            self.learn(X[rows], Y[rows])
            advance(len(X[rows]))

    def predict(self, X: np.ndarray) -> np.ndarray:
        """(m, c) predictions in the units of `Stream.Y`; of classes, their probabilities if known.

        Raises:
            ModelFailedError: The model did, or they are not numbers.
        """
        if not self.learned:
            return self._predict_untrained(X)
        with _failures_of(self, f"predicting after {self.learned:,} rows"):
            predicted = np.asarray(self._predict(X), dtype=np.float64)
        return self._checked(predicted, len(X))

    def _checked(self, predicted: np.ndarray, rows: int) -> np.ndarray:
        if predicted.shape != (rows, self.outputs):
            raise ModelFailedError(
                f"{self.name} gave predictions of shape {predicted.shape}; expected "
                f"({rows}, {self.outputs}), one for each row and target"
            )
        if not np.isfinite(predicted).all():
            raise ModelFailedError(
                f"{self.name} gave predictions that are not finite numbers after "
                f"{self.learned:,} rows"
            )
        return predicted

    def _predict_untrained(self, X: np.ndarray) -> np.ndarray:
        return np.zeros((len(X), self.outputs))

    def fresh(self) -> Self:
        """The same model, as it was before it learned anything."""
        new = copy.copy(self)
        new.learned = 0
        new._renew()
        return new

    def fit(self, X: np.ndarray, Y: np.ndarray) -> bool:
        """Trains it as a batch model of its library; False where the library has no such thing."""
        return False

    @abstractmethod
    def _renew(self) -> None: ...

    @abstractmethod
    def _learn(self, X: np.ndarray, Y: np.ndarray) -> None: ...

    @abstractmethod
    def _predict(self, X: np.ndarray) -> Any: ...

    def _one_hot(self, labels: list[Any]) -> np.ndarray:
        """(m, c) 1 for the class that is named."""
        return np.array([[float(label == one) for one in self.classes] for label in labels])

    def _labels(self, Y: np.ndarray) -> list[Any]:
        return [self.classes[k] for k in Y.argmax(axis=1)]


@contextmanager
def _failures_of(model: OnlineModel, doing: str) -> Iterator[None]:
    """Turns what the user's model raises into a failure, and keeps its warnings quiet."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # the same one in thousands of calls
            yield
    except Exception as error:  # the user's own code: any kind
        text = str(error).partition("\n")[0].rstrip(".")
        raise ModelFailedError(
            f"{model.name} failed when {doing}: {type(error).__name__}: {text}"
        ) from error


class PartialFitModel(OnlineModel):
    """A model with `partial_fit` and `predict`, as scikit-learn has them."""

    def __init__(self, model: Any, stream: Stream, batch_size: int) -> None:
        super().__init__(type(model).__name__, stream, batch_size)
        self.original = model
        self.classifies = _is_classifier(model)
        if self.classifies and stream.kind == "regression":
            raise InvalidInputError(
                f"the model {self.name} is a classifier and the targets are numbers; expected a "
                "regressor, or classes (kind='classification')"
            )
        # one copy is enough for a classifier, and for a regressor that knows several outputs
        rows = slice(0, batch_size)
        whole = (
            self.classifies
            or self.outputs == 1
            or _takes_several_targets(model, stream.X[rows], stream.Y[rows])
        )
        self._count = 1 if whole else self.outputs
        self._announces = "classes" in inspect.signature(model.partial_fit).parameters
        self.quick = batch_size == 1 and _learns_row_by_row(model)
        self._renew()

    def _renew(self) -> None:
        self._models = [_unfitted(self.original) for _ in range(self._count)]
        if self.quick:
            for model in self._models:
                model.set_params(shuffle=False)  # rows of one call are learned in their order

    def _targets(self, Y: np.ndarray) -> list[np.ndarray]:
        """What each copy learns."""
        if self.classifies:
            return [np.array(self._labels(Y))]
        return [Y] if self._count == 1 and self.outputs > 1 else list(Y.T)

    def _learn(self, X: np.ndarray, Y: np.ndarray) -> None:
        first = self.classifies and self._announces and not self.learned
        arguments = {"classes": np.array(sorted(self.classes))} if first else {}
        for model, y in zip(self._models, self._targets(Y), strict=True):
            model.partial_fit(X, y, **arguments)

    def learn_in_turn(self, X: np.ndarray, Y: np.ndarray, advance: Advance) -> None:
        """In one call where that takes the same steps."""
        if not self.quick:
            return super().learn_in_turn(X, Y, advance)
        self.learn(X, Y)
        return advance(len(X))

    def fit(self, X: np.ndarray, Y: np.ndarray) -> bool:
        """scikit-learn's own `fit`. Other libraries' may be one pass like any other."""
        if not hasattr(self.original, "fit"):
            return False
        if not inspect.unwrap(type(self.original).fit).__module__.startswith("sklearn."):
            return False
        with _failures_of(self, "fitted to all rows"):
            self._models = [_unfitted(self.original) for _ in self._models]
            for model, y in zip(self._models, self._targets(Y), strict=True):
                model.fit(X, y)
        self.learned = len(X)
        return True

    def _predict(self, X: np.ndarray) -> Any:
        if not self.classifies:
            columns = [np.asarray(model.predict(X)) for model in self._models]
            return columns[0].reshape(len(X), -1) if self._count == 1 else np.column_stack(columns)
        (model,) = self._models
        if not hasattr(model, "predict_proba"):
            return self._one_hot(list(model.predict(X)))
        known = [self.classes.index(str(label)) for label in model.classes_]
        predicted = np.zeros((len(X), self.outputs))
        predicted[:, known] = model.predict_proba(X)
        return predicted


def _is_classifier(model: Any) -> bool:
    """Whether a model with `partial_fit` wants classes."""
    from sklearn.base import BaseEstimator, is_classifier  # when a model is used only

    if isinstance(model, BaseEstimator):
        return bool(is_classifier(model))
    return "classes" in inspect.signature(model.partial_fit).parameters


def _learns_row_by_row(model: Any) -> bool:
    """Whether `partial_fit` takes a step for each row, so that one call is as good as many."""
    from sklearn.linear_model import Perceptron, SGDClassifier, SGDRegressor

    return type(model) in (Perceptron, SGDClassifier, SGDRegressor)


def _takes_several_targets(model: Any, X: np.ndarray, Y: np.ndarray) -> bool:
    """Whether a copy of the model learns these rows with all targets, and predicts all of them."""
    trial = _unfitted(model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial.partial_fit(X, Y)
            return bool(np.shape(trial.predict(X)) == Y.shape)
    except Exception:  # the user's own code: any kind. It then wants one target.
        return False


def _unfitted(model: Any) -> Any:
    from sklearn.base import clone

    return clone(model) if hasattr(model, "get_params") else copy.deepcopy(model)


class OneByOneModel(OnlineModel):
    """A model with `learn_one` and `predict_one`, as river has them."""

    def __init__(self, model: Any, stream: Stream) -> None:
        of_river = " of river" if type(model).__module__.startswith("river.") else ""
        super().__init__(type(model).__name__ + of_river, stream, batch_size=1)
        self.original = model
        decides = model
        while hasattr(decides, "steps"):  # of a pipeline, the last step
            decides = list(decides.steps.values())[-1]
        self.classifies = hasattr(decides, "predict_proba_one")
        if self.classifies and stream.kind == "regression":
            raise InvalidInputError(
                f"the model {self.name} is a classifier and the targets are numbers; expected a "
                "regressor, or classes (kind='classification')"
            )
        if self.classifies and not getattr(decides, "_multiclass", True):
            if self.outputs != 2:
                raise InvalidInputError(
                    f"the model {self.name} is for two classes and the target has {self.outputs}; "
                    "wrap it: river.multiclass.OneVsRestClassifier(model)"
                )
            self.classes: list[Any] = [False, True]
        self._renew()

    def _renew(self) -> None:
        count = 1 if self.classifies else self.outputs
        clone = getattr(self.original, "clone", None)
        self._models = [
            copy.deepcopy(self.original) if clone is None else clone() for _ in range(count)
        ]

    def _rows(self, X: np.ndarray) -> Iterator[dict[str, float]]:
        for row in X.tolist():
            yield dict(zip(self.features, row, strict=True))

    def _learn(self, X: np.ndarray, Y: np.ndarray) -> None:
        targets = [self._labels(Y)] if self.classifies else Y.T.tolist()
        for model, column in zip(self._models, targets, strict=True):
            for row, target in zip(self._rows(X), column, strict=True):
                model.learn_one(row, target)

    def _predict_untrained(self, X: np.ndarray) -> np.ndarray:
        with _failures_of(self, "predicting before its first row"):
            predicted = np.asarray(self._predict(X))
        return self._checked(predicted, len(X))

    def _predict(self, X: np.ndarray) -> Any:
        if not self.classifies:
            # None: it does not know yet
            columns = [
                [
                    0.0 if (value := model.predict_one(row)) is None else value
                    for row in self._rows(X)
                ]
                for model in self._models
            ]
            return np.array(columns, dtype=np.float64).T
        (model,) = self._models
        try:
            tables = [model.predict_proba_one(row) for row in self._rows(X)]
        except NotImplementedError:  # river's base class has it for all
            return self._one_hot([model.predict_one(row) for row in self._rows(X)])
        return np.array([[table.get(one, 0.0) for one in self.classes] for table in tables])


class TorchModel(OnlineModel):
    """A torch module with its optimiser and loss.

    Where the loss is the cross-entropy of logits, predictions are probabilities.
    """

    def __init__(
        self,
        module: nn.Module,
        optimiser: torch.optim.Optimizer,
        loss: Loss,
        stream: Stream,
        batch_size: int,
    ) -> None:
        name = f"{type(module).__name__} with {type(optimiser).__name__}"
        super().__init__(name, stream, batch_size)
        self.original = _copied(module, optimiser, loss)
        self._renew()

    def _renew(self) -> None:
        self.module, self.optimiser, self.loss = _copied(*self.original)

    def _tensor(self, array: np.ndarray) -> Tensor:
        like = next(self.module.parameters())
        return torch.tensor(array, dtype=like.dtype, device=like.device)

    def _learn(self, X: np.ndarray, Y: np.ndarray) -> None:
        inputs, targets = self._tensor(X), self._tensor(Y)
        self.module.train()

        def closure() -> float:
            self.optimiser.zero_grad()
            outputs = self.module(inputs)
            if outputs.shape != targets.shape and outputs.numel() != targets.numel():
                raise ValueError(
                    f"its outputs have shape {tuple(outputs.shape)}; expected "
                    f"{tuple(targets.shape)}"
                )
            value = self.loss(outputs, targets.reshape(outputs.shape))
            torch.autograd.backward(value)
            return float(value)

        with torch.enable_grad():
            self.optimiser.step(closure)

    def _predict_untrained(self, X: np.ndarray) -> np.ndarray:
        with _failures_of(self, "predicting with its first weights"):
            predicted = np.asarray(self._predict(X))
        return self._checked(predicted, len(X))

    def _predict(self, X: np.ndarray) -> Any:
        self.module.eval()
        parts = []
        with torch.no_grad():
            for start in range(0, len(X), PREDICTED_AT_ONCE):
                outputs = self.module(self._tensor(X[start : start + PREDICTED_AT_ONCE]))
                if isinstance(self.loss, nn.CrossEntropyLoss):
                    outputs = outputs.softmax(dim=1)
                elif isinstance(self.loss, nn.BCEWithLogitsLoss):
                    outputs = outputs.sigmoid()
                parts.append(outputs.reshape(len(outputs), -1).double().cpu().numpy())
        return np.concatenate(parts)


def _copied(
    module: nn.Module, optimiser: torch.optim.Optimizer, loss: Loss
) -> tuple[nn.Module, torch.optim.Optimizer, Loss]:
    """All three, where the copied optimiser's parameters are the copied module's."""
    memo: dict[int, Any] = {}
    module = copy.deepcopy(module, memo)
    # an optimiser's own way of being copied leaves out what some of them need (LBFGS)
    new: torch.optim.Optimizer = object.__new__(type(optimiser))
    new.__dict__.update(copy.deepcopy(vars(optimiser), memo))
    return module, new, copy.deepcopy(loss, memo)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds what models draw from (`random`, NumPy, torch), and puts it back as it was."""
    kept = random.getstate(), np.random.get_state()  # noqa: NPY002 (models draw from this one)
    try:
        with torch.random.fork_rng(devices=[]):
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            torch.manual_seed(seed)
            yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])  # noqa: NPY002
