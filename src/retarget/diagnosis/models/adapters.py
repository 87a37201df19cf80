"""One interface, learn rows and predict rows, for models of scikit-learn, river and torch.

A model gets the features as the diagnosis prepares them (`Stream.X`: columns as numbers,
standardized unless `standardize=False`), in mini-batches of `batch_size` rows, and

* for numbers, the targets as prepared (`Stream.Y`: standardized as well);
* for classes, a classifier with `partial_fit` or `learn_one` gets the classes' names (a binary
  classifier of river: False and True, where True is the second class). The first `partial_fit`
  names all classes. A regressor or a torch module gets one output for each class, 1 for the
  row's own and 0 for the others.

If there are several targets, a regressor with one output is copied for each. A river model sees one
row at a time, as a dict by feature names, whatever the batch size. If a model cannot predict before
it has learned anything, its predictions count as 0.
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

from retarget.diagnosis.spelling import spelled
from retarget.diagnosis.stream import Stream
from retarget.engine.stream_kernel import Advance
from retarget.errors import InvalidInputError
from retarget.import_path import USER_ERRORS, reason

PREDICTED_AT_ONCE = 4096  # rows

LossFunction = Callable[[Tensor, Tensor], Tensor]


class ModelFailedError(Exception):
    """The user's model raised an error, or returned something that is not a prediction.

    `learned` is how many rows it had learned by then.
    """

    def __init__(self, message: str, learned: int) -> None:
        super().__init__(message)
        self.learned = learned


class OnlineModel(ABC):
    """A user's model that learns a few rows at a time.

    Its methods raise `ModelFailedError` if the user's model fails.

    Attributes:
        learned: Rows learned so far.
        quick: Whether one cheap call can learn many rows one after another.
        knows_at_first: Whether it can predict before it has learned anything.
    """

    quick = False
    knows_at_first = True

    def __init__(self, name: str, stream: Stream, batch_size: int) -> None:
        self.name = name
        self.batch_size = batch_size
        self.outputs = stream.Y.shape[1]
        self.classes: list[Any] = list(stream.target_names)
        self.features = stream.feature_names
        self.learned = 0

    def learn(self, X: np.ndarray, Y: np.ndarray) -> None:
        """Learns rows (m, d) with targets (m, c) as one mini-batch."""
        with self._failing(f"learning row {self.learned + 1:,}"):
            self._learn(X, Y)
        self.learned += len(X)

    def learn_in_turn(self, X: np.ndarray, Y: np.ndarray, advance: Advance) -> None:
        """Learns any number of rows, one mini-batch after another."""
        size = len(X) if self.quick else self.batch_size
        for start in range(0, len(X), size):
            rows = slice(start, start + size)
            self.learn(X[rows], Y[rows])
            advance(len(X[rows]))

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Returns (m, c) predictions in the units of `Stream.Y`; probabilities, if known."""
        if not self.learned and not self.knows_at_first:
            return np.zeros((len(X), self.outputs))
        moment = f"after {self.learned:,} rows" if self.learned else "before its first row"
        parts = [X[k : k + PREDICTED_AT_ONCE] for k in range(0, len(X), PREDICTED_AT_ONCE)]
        with self._failing(f"predicting {moment}"):
            predictions = [
                np.asarray(self._predict(portion), dtype=np.float64) for portion in parts
            ]
            predicted = np.concatenate(predictions)
        if predicted.shape != (len(X), self.outputs):
            raise ModelFailedError(
                f"{self.name} gave predictions of shape {predicted.shape}; expected "
                f"({len(X)}, {self.outputs}), one for each row and target",
                self.learned,
            )
        if not np.isfinite(predicted).all():
            raise ModelFailedError(
                f"{self.name} gave predictions that are not finite numbers {moment}", self.learned
            )
        return predicted

    def fresh(self) -> Self:
        """Returns a copy of the model as it was before it learned anything."""
        new = copy.copy(self)
        new.learned = 0
        new._renew()
        return new

    def copied(self) -> Self:
        """Returns a copy of the model as it is now."""
        with self._failing("it was copied"):
            return copy.deepcopy(self)

    def aside(self) -> Self:
        """Returns a copy to ask, so that being asked does not change the model.

        A model that cannot be copied once it has learned is asked itself.
        """
        try:
            return self.copied()
        except ModelFailedError:
            return self

    def fit(self, X: np.ndarray, Y: np.ndarray) -> bool:
        """Trains it with its library's own batch training; returns False if there is none."""
        return False

    def _renew(self) -> None:
        with self._failing("it was copied"):
            self._copy()

    @abstractmethod
    def _copy(self) -> None: ...

    @abstractmethod
    def _learn(self, X: np.ndarray, Y: np.ndarray) -> None: ...

    @abstractmethod
    def _predict(self, X: np.ndarray) -> Any: ...

    @contextmanager
    def _failing(self, doing: str) -> Iterator[None]:
        """Turns the model's exceptions into `ModelFailedError`, and silences its warnings."""
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")  # the same warning in thousands of calls
                yield
        except USER_ERRORS as error:
            message = f"{self.name} failed when {doing}: {reason(error)}"
            raise ModelFailedError(message, self.learned) from error

    def _require_classes(self, stream: Stream) -> None:
        """For a classifier: raises an error if the targets are numbers."""
        if stream.kind == "regression":
            raise InvalidInputError(
                f"the model {self.name} is a classifier and the targets are numbers; expected a "
                f"regressor, or classes, {spelled('kind', 'classification')}"
            )

    def _one_hot(self, labels: list[Any]) -> np.ndarray:
        """Returns (m, c) ones for the named classes, else zeros."""
        return np.array([[float(label == one) for one in self.classes] for label in labels])

    def _labels(self, Y: np.ndarray) -> list[Any]:
        return [self.classes[k] for k in Y.argmax(axis=1)]


def _unfitted(model: Any) -> Any:
    """Returns an untrained copy, made as the model's library does it."""
    from sklearn.base import clone  # imported only if a model is used

    if hasattr(model, "learn_one") and hasattr(model, "clone"):
        return model.clone()
    return clone(model) if hasattr(model, "get_params") else copy.deepcopy(model)


class PartialFitModel(OnlineModel):
    """A model with `partial_fit` and `predict`, as scikit-learn has them."""

    knows_at_first = False

    def __init__(self, model: Any, stream: Stream, batch_size: int) -> None:
        from sklearn.base import BaseEstimator, is_classifier
        from sklearn.linear_model import Perceptron, SGDClassifier, SGDRegressor

        super().__init__(type(model).__name__, stream, batch_size)
        self.original = model
        self._announces = "classes" in inspect.signature(model.partial_fit).parameters
        known = isinstance(model, BaseEstimator)
        self.classifies = bool(is_classifier(model)) if known else self._announces
        if self.classifies:
            self._require_classes(stream)
        # one copy suffices for a classifier, and for a regressor with several outputs
        rows = slice(0, batch_size)
        whole = self.classifies or self.outputs == 1
        whole = whole or _takes_several_targets(model, stream.X[rows], stream.Y[rows])
        self._count = 1 if whole else self.outputs
        # these take one step per row, so one call does the same as many
        steps = type(model) in (Perceptron, SGDClassifier, SGDRegressor)
        self.quick = batch_size == 1 and steps
        self._renew()

    def _copy(self) -> None:
        self._models = [_unfitted(self.original) for _ in range(self._count)]
        if self.quick:
            for model in self._models:
                model.set_params(shuffle=False)  # learn the rows of one call in order

    def _targets(self, Y: np.ndarray) -> list[np.ndarray]:
        """Returns the targets that each copy learns."""
        if self.classifies:
            return [np.array(self._labels(Y))]
        return [Y] if self._count == 1 and self.outputs > 1 else list(Y.T)

    def _learn(self, X: np.ndarray, Y: np.ndarray) -> None:
        first = self.classifies and self._announces and not self.learned
        arguments = {"classes": np.array(sorted(self.classes))} if first else {}
        for model, y in zip(self._models, self._targets(Y), strict=True):
            model.partial_fit(X, y, **arguments)

    def fit(self, X: np.ndarray, Y: np.ndarray) -> bool:
        """Calls scikit-learn's `fit`. In other libraries, `fit` may be just one more pass."""
        own = getattr(type(self.original), "fit", None)
        if own is None or not inspect.unwrap(own).__module__.startswith("sklearn."):
            return False
        with self._failing("fitted to all rows"):
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


def _takes_several_targets(model: Any, X: np.ndarray, Y: np.ndarray) -> bool:
    """Whether a copy of the model learns these rows with all targets, and predicts all of them."""
    trial = _unfitted(model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial.partial_fit(X, Y)
            return bool(np.shape(trial.predict(X)) == Y.shape)
    except USER_ERRORS:  # it then wants one target
        return False


class OneByOneModel(OnlineModel):
    """A model with `learn_one` and `predict_one`, as river has them."""

    def __init__(self, model: Any, stream: Stream) -> None:
        of_river = " of river" if type(model).__module__.startswith("river.") else ""
        super().__init__(type(model).__name__ + of_river, stream, batch_size=1)
        self.original = decides = model
        while isinstance(getattr(decides, "steps", None), dict):  # the last step of a pipeline
            decides = list(decides.steps.values())[-1]
        self.classifies = hasattr(decides, "predict_proba_one")
        if self.classifies:
            self._require_classes(stream)
        if self.classifies and not getattr(decides, "_multiclass", True):
            if self.outputs != 2:
                raise InvalidInputError(
                    f"the model {self.name} is for two classes and the target has {self.outputs}; "
                    "wrap it: river.multiclass.OneVsRestClassifier(model)"
                )
            self.classes = [False, True]
        self._renew()

    def _copy(self) -> None:
        count = 1 if self.classifies else self.outputs
        self._models = [_unfitted(self.original) for _ in range(count)]

    def _rows(self, X: np.ndarray) -> Iterator[dict[str, float]]:
        for row in X.tolist():
            yield dict(zip(self.features, row, strict=True))

    def _learn(self, X: np.ndarray, Y: np.ndarray) -> None:
        targets = [self._labels(Y)] if self.classifies else Y.T.tolist()
        for model, column in zip(self._models, targets, strict=True):
            for row, target in zip(self._rows(X), column, strict=True):
                model.learn_one(row, target)

    def _predict(self, X: np.ndarray) -> Any:
        if not self.classifies:
            predictions = [
                [model.predict_one(row) for row in self._rows(X)] for model in self._models
            ]
            # None: it cannot predict yet
            return np.array(
                [[0.0 if one is None else one for one in column] for column in predictions]
            ).T
        (model,) = self._models
        try:
            tables = [model.predict_proba_one(row) for row in self._rows(X)]
        except NotImplementedError:  # river's base class defines it for all
            return self._one_hot([model.predict_one(row) for row in self._rows(X)])
        return np.array([[table.get(one, 0.0) for one in self.classes] for table in tables])


class TorchModel(OnlineModel):
    """A torch module with its optimizer and loss.

    If the loss is the cross-entropy of logits, predictions are probabilities.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: LossFunction,
        stream: Stream,
        batch_size: int,
    ) -> None:
        name = f"{type(module).__name__} with {type(optimizer).__name__}"
        super().__init__(name, stream, batch_size)
        with self._failing("it was copied"):
            self.original = _copied(module, optimizer, loss)
        self._renew()

    def _copy(self) -> None:
        self.module, self.optimizer, self.loss = _copied(*self.original)

    def _tensor(self, array: np.ndarray) -> Tensor:
        like = next(self.module.parameters())
        return torch.tensor(array, dtype=like.dtype, device=like.device)

    def _learn(self, X: np.ndarray, Y: np.ndarray) -> None:
        inputs = self._tensor(X)
        targets = self._tensor(Y)
        self.module.train()

        def closure() -> float:
            self.optimizer.zero_grad()
            outputs = self.module(inputs)
            if outputs.numel() != targets.numel():
                raise ValueError(
                    f"its outputs have shape {tuple(outputs.shape)}; expected "
                    f"{tuple(targets.shape)}"
                )
            value = self.loss(outputs, targets.reshape(outputs.shape))
            torch.autograd.backward(value)
            return float(value)

        with torch.enable_grad():
            self.optimizer.step(closure)

    def _predict(self, X: np.ndarray) -> Any:
        self.module.eval()
        with torch.no_grad():
            outputs = self.module(self._tensor(X))
            if isinstance(self.loss, nn.CrossEntropyLoss):
                outputs = outputs.softmax(dim=1)
            elif isinstance(self.loss, nn.BCEWithLogitsLoss):
                outputs = outputs.sigmoid()
            return outputs.reshape(len(outputs), -1).double().cpu().numpy()


def _copied(
    module: nn.Module, optimizer: torch.optim.Optimizer, loss: LossFunction
) -> tuple[nn.Module, torch.optim.Optimizer, LossFunction]:
    """Copies all three; the copied optimizer refers to the copied module's parameters."""
    memo: dict[int, Any] = {}
    module = copy.deepcopy(module, memo)
    # copying an optimizer directly drops state that some of them need (LBFGS)
    new: torch.optim.Optimizer = object.__new__(type(optimizer))
    new.__dict__.update(copy.deepcopy(vars(optimizer), memo))
    return module, new, copy.deepcopy(loss, memo)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds `random`, NumPy and torch, which models draw from, and restores them at the end."""
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
