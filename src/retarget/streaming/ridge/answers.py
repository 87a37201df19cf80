"""What a learner of sums answers: predictions, how certain they are, and its own errors."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from retarget.errors import InvalidInputError
from retarget.samples import library_of, take
from retarget.settings import in_plain_torch
from retarget.streaming.ridge.rows import RidgeState, SampleRows
from retarget.streaming.ridge.solution import RidgeSolution, solve
from retarget.streaming.ridge.spread import LeftOut, Spread, left_out, noise_of, spread_of
from retarget.streaming.ridge.views import Views


class Prepared(NamedTuple):
    """Features of samples, made by `StreamingRidge.prepare`."""

    like: Any  # an empty array in the library that predictions are returned in
    parts: list[tuple[Tensor, Tensor]]  # features and starting values, a few samples each


class RidgeAnswers:
    """All that a learner says of what it has learned; it changes nothing but what it remembers.

    Attributes:
        learned: What was learned.
    """

    gamma: float | Literal["auto"]
    learned: RidgeState
    _rows: SampleRows
    _views: Views
    # what the newest solution was computed from, and the solution; the same for its spread
    _solution: tuple[RidgeState, RidgeSolution] | None
    _spread: tuple[RidgeState, Spread] | None

    @property
    def gamma_(self) -> float:
        """The ridge in use: as given, or chosen by cross-validation."""
        return self.solution().gamma

    @property
    @in_plain_torch
    def noise_(self) -> Any:
        r"""Variance of the targets about the function, one number for each, (c,).

        It is $(\sum y^2 - \sum B \circ W) / N$, for which the targets are most likely if the
        function is a Gaussian process; see `predict`.
        """
        learned = self.learned
        solution = self._solved(learned)
        assert learned.moments is not None  # as it was solved
        noise = noise_of(learned.moments, solution)
        return float(noise[0]) if learned.form.flat else noise.cpu().numpy()

    @in_plain_torch
    def solution(self) -> RidgeSolution:
        """Returns the weights (m, c) of the features, the intercept (c,) and the ridge."""
        return self._solved(self.learned)

    @in_plain_torch
    def prepare(self, X: Any) -> "Prepared":
        """Computes the features of samples that will be passed to `predict` many times.

        Use it if features are expensive and you predict the same samples, such as a test set,
        after every portion of a stream. The result keeps all features in memory.
        """
        learned = self.learned
        parts = list(self._rows.means(X, learned))
        return Prepared(library_of(take(X, slice(0, 0))), parts)

    @in_plain_torch
    def predict(self, X: Any, *, return_std: bool = False) -> Any:
        r"""Returns predictions, in the library of X and with the axes of Y.

        Args:
            X: (n, ...) samples, or the result of `prepare`.
            return_std: Whether to return a pair: predictions, and how uncertain each is, as a
                standard deviation of the same shape. It is that of a Gaussian process of which
                ridge regression is the mean,

                $$\operatorname{std}^2 = \sigma^2\, \phi^\top (C + \gamma I)^{-1} \phi,$$

                the same as scikit-learn's `GaussianProcessRegressor` with the kernel
                $\frac{\sigma^2}{\gamma} \phi^\top \phi'$ and `alpha`$= \sigma^2$, the noise
                (`noise_`). It grows with the distance from everything learned. A new target
                scatters about the prediction with the variance $\operatorname{std}^2 + \sigma^2$.
                Each sample costs $m^2$ multiplications, and the first one after a change $m^3/3$.

        Raises:
            InvalidInputError: Nothing has been learned yet; for `return_std`, fewer than 2 samples.
        """
        learned = self.learned
        weights, intercept, _ = solution = self._solved(learned)
        if isinstance(X, Prepared):
            like = X.like
            parts = iter(X.parts)
            _require_fitting(X.parts, weights)
        else:
            like = library_of(X)
            parts = self._rows.means(X, learned)
        predicted = [weights.new_empty(0, learned.outputs)]
        deviations = [weights.new_empty(0, learned.outputs)]
        if return_std:
            assert learned.moments is not None  # as it was solved
            noise = noise_of(learned.moments, solution) * len(self._views)
            spread = self._spread_of(learned)
        for features, start in parts:
            predicted.append(start.to(weights) + features.to(weights) @ weights + intercept)
            if return_std:
                deviations.append((spread.of(features)[:, None] * noise).sqrt())
        if not return_std:
            return self._given(predicted, like, learned)
        return self._given(predicted, like, learned), self._given(deviations, like, learned)

    def _given(self, parts: Iterable[Tensor], like: Any, learned: RidgeState) -> Any:
        """Returns values (n, c) in the caller's library, with the axes of Y."""
        result = torch.cat(list(parts))
        if isinstance(like, Tensor):
            result = result.to(like.device)
        return replace(learned.form, numpy=not isinstance(like, Tensor)).give(result)

    @in_plain_torch
    def spread(self, X: Any) -> Tensor:
        r"""Returns $\phi^\top (C + \gamma I)^{-1} \phi$ (n,): large far from what was learned."""
        learned = self.learned
        spread = self._spread_of(learned)
        parts = iter(X.parts) if isinstance(X, Prepared) else self._rows.means(X, learned)
        empty = spread.mean.new_empty(0)
        return torch.cat([empty, *(spread.of(features) for features, _ in parts)])

    @in_plain_torch
    def left_out(self) -> LeftOut:
        """Returns predictions of the samples that are kept, each without having learned it.

        They are those of a learner with the same ridge that has learned all other samples. Needs
        `calibration` above 0.

        Raises:
            InvalidInputError: No sample is kept, or fewer than 2 were learned.
        """
        learned = self.learned
        solution = self._solved(learned)
        assert learned.moments is not None  # as it was solved
        return left_out(learned.kept, learned.moments, solution, self._spread_of(learned))

    def _solved(self, learned: RidgeState) -> RidgeSolution:
        if learned.moments is None:
            raise InvalidInputError("nothing has been learned yet; call learn(X, Y) first")
        known = self._solution
        if known is not None and known[0] is learned:
            return known[1]
        solution = solve(learned.moments, self.gamma)
        self._solution = learned, solution
        return solution

    def _spread_of(self, learned: RidgeState) -> Spread:
        known = self._spread
        if known is not None and known[0] is learned:
            return known[1]
        solution = self._solved(learned)
        assert learned.moments is not None  # as it was solved
        spread = spread_of(learned.moments, solution)
        self._spread = learned, spread
        return spread


def _require_fitting(parts: list[tuple[Tensor, Tensor]], weights: Tensor) -> None:
    """Rejects features that were prepared before learning, or for another learner."""
    for features, start in parts:
        sizes = features.shape[1], start.shape[1]
        if sizes != tuple(weights.shape):
            raise InvalidInputError(
                f"X was prepared with {sizes[0]} features for {sizes[1]} outputs, but the learner "
                f"has {weights.shape[0]} and {weights.shape[1]}; call prepare again, after learn"
            )
