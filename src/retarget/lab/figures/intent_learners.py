"""Learners that are given sentences as numbers, one intent after another.

Each returns its scores of the queries after every stop: (queries, intents learned so far).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from retarget.engine.cholesky import factorize

SHRINKAGE = 1e-4  # of the shared covariance towards the identity, as in the paper of SLDA
INVERSE_PENALTY = 30.0  # of the logistic regression: the best of 10, 30 and 100


@dataclass(frozen=True)
class IntentStream:
    """Sentences as numbers, intents one after another.

    Attributes:
        features: (n, d) the learned sentences, in the order of the stream.
        labels: (n,) the place of each one's intent in that order.
        queries: (m, d) the sentences to answer.
        ends: How many sentences there are up to the end of each intent.
        stops: After how many intents the queries are asked.
    """

    features: Tensor
    labels: Tensor
    queries: Tensor
    ends: tuple[int, ...]
    stops: tuple[int, ...]

    @property
    def intents(self) -> Iterator[tuple[int, slice]]:
        """Each intent and its rows."""
        first = 0
        for intent, end in enumerate(self.ends):
            yield intent, slice(first, end)
            first = end


@dataclass(frozen=True)
class Ridge:
    """Ridge regression on one-hot rows, which is exact at every stop.

    Attributes:
        scores: After each stop, (queries, intents so far).
        variance: (queries,) of the last predictions, as a share of the noise.
    """

    scores: list[Tensor]
    variance: Tensor


def learn_ridge(
    gram: Tensor, query_gram: Tensor, query_norms: Tensor, stream: IntentStream, gamma: float
) -> Ridge:
    r"""Returns $k(q) (\gamma I + K)^{-1} Y$ for each prefix of the stream, from one factorization.

    These are the predictions of `StreamingRidge` after the same sentences, whatever the order.
    """
    factor = factorize(gram, gamma)
    Y = functional.one_hot(stream.labels, len(stream.ends)).to(gram)
    V = factor.solve_lower(query_gram.mT.contiguous())
    beta = factor.solve_lower(Y)
    total = V.new_zeros(len(query_gram), Y.shape[1])
    scores = []
    first = 0
    for stop in stream.stops:
        end = stream.ends[stop - 1]
        total = total + V[first:end].mT @ beta[first:end]
        scores.append(total[:, :stop])
        first = end
    return Ridge(scores, query_norms - V.square().sum(0))


def learn_means(stream: IntentStream) -> list[Tensor]:
    """The negative squared distance to the mean of each intent."""
    means = torch.stack([stream.features[rows].mean(0) for _, rows in stream.intents])
    distances = torch.cdist(stream.queries, means).square()
    return [-distances[:, :stop] for stop in stream.stops]


def learn_slda(stream: IntentStream) -> list[Tensor]:
    """Means of the intents, and one covariance for all, kept as sums."""
    X = stream.features.double()
    queries = stream.queries.double()
    width = X.shape[1]
    scatter = X.new_zeros(width, width)
    means: list[Tensor] = []
    scores = []
    for intent, rows in stream.intents:
        means.append(X[rows].mean(0))
        centered = X[rows] - means[-1]
        scatter += centered.mT @ centered
        if intent + 1 in stream.stops:
            covariance = scatter / rows.stop
            shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * torch.eye(width).to(X)
            M = torch.stack(means)
            W = torch.linalg.solve(shrunk, M.mT)
            scores.append(queries @ W - (M * W.mT).sum(1) / 2)
    return scores


def learn_sgd(stream: IntentStream, seed: int) -> list[Tensor]:
    """scikit-learn's `SGDClassifier.partial_fit`, once over the sentences of each intent."""
    from sklearn.linear_model import SGDClassifier

    random = np.random.default_rng(seed)
    model = SGDClassifier(random_state=seed)
    classes = np.arange(len(stream.ends))
    scores = []
    for intent, rows in stream.intents:
        shuffled = rows.start + random.permutation(rows.stop - rows.start)
        X = stream.features[shuffled].numpy()
        model.partial_fit(X, stream.labels[shuffled].numpy(), classes)
        if intent + 1 in stream.stops:
            every = torch.from_numpy(model.decision_function(stream.queries.numpy()))
            scores.append(every if every.ndim == 2 else torch.stack([-every, every], 1))
    return [each[:, :stop] for each, stop in zip(scores, stream.stops, strict=True)]


def learn_logistic(stream: IntentStream) -> list[Tensor]:
    """Logistic regression on all sentences at once, at the last stop only."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=INVERSE_PENALTY, max_iter=1000)
    model.fit(stream.features.numpy(), stream.labels.numpy())
    scores = torch.from_numpy(model.predict_log_proba(stream.queries.numpy()))
    empty = [scores.new_zeros(len(scores), 0)] * (len(stream.stops) - 1)
    return [*empty, scores]


BASELINES: dict[str, Callable[[IntentStream, int], list[Tensor]]] = {
    "class means": lambda stream, seed: learn_means(stream),
    "SLDA": lambda stream, seed: learn_slda(stream),
    "SGD": learn_sgd,
    "logistic": lambda stream, seed: learn_logistic(stream),
}


def random_relu(embeddings: Tensor, features: int, seed: int = 0) -> Tensor:
    """(n, features) max(0, W x) of unit length, W drawn from the normal distribution."""
    random = torch.Generator("cpu").manual_seed(seed)
    weights = torch.randn((embeddings.shape[1], features), generator=random)
    return functional.normalize((embeddings @ weights.to(embeddings)).relu(), dim=1)


def ranking_quality(inside: Tensor, outside: Tensor) -> float:
    """The share of pairs in which the known sentence has the larger score (AUROC)."""
    from sklearn.metrics import roc_auc_score

    truth = np.repeat([1, 0], [len(inside), len(outside)])
    return float(roc_auc_score(truth, torch.cat([inside, outside]).double().numpy()))


def kept_bytes(method: str, features: int, width: int, stream: IntentStream, text: int) -> int:
    """Bytes that a method keeps after the stream: sums in float32, or `text` bytes of sentences."""
    intents = len(stream.ends)

    def ridge(columns: int) -> int:
        return 4 * (columns * (columns + 1) // 2 + columns * intents)

    return {
        "class means": 4 * intents * width,
        "SLDA": 4 * (intents * width + width * (width + 1) // 2),
        "SGD": 4 * intents * (width + 1),
        "logistic": text,
        "ridge": ridge(width),
        "random features": ridge(features),
        "tangents": ridge(features),
        "both": 2 * ridge(features),
        "one ridge on both": ridge(2 * features),
    }[method]
