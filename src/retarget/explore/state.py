"""What the page shows is computed from this: the points, their order, the learner, the moment."""

from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from retarget.learners import SGD

Order = Literal["as given", "reversed", "by x", "random"]
MOST_POINTS = 500

# Bounds far beyond any use, so that no sum or product of a few of these can overflow. They refuse
# what is not a number, too.
LARGEST = 1e12
Number = Annotated[float, Field(ge=-2 * LARGEST, le=2 * LARGEST)]  # a margin fits beside the points
Positive = Annotated[float, Field(ge=1 / LARGEST, le=2 * LARGEST)]


class State(BaseModel):
    """One setting of the page. Points are in the order in which they were given.

    Attributes:
        x: Where each point lies.
        y: Its target.
        low: Left end of the picture.
        high: Right end of the picture.
        order: How the points become a stream; `"by x"` is from left to right.
        seed: Draws the random order.
        lr: Rate of the online learner.
        batch_size: Samples in each of its steps.
        momentum: Its momentum.
        gamma: Ridge of the offline learner.
        width: Width of the kernel.
        block_size: Samples that the iterative correction corrects together.
        block_ridge: Its ridge for the kernel of a block.
        start: The constant function from which learning starts.
        seen: How many samples of the stream have been learned.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    x: Annotated[list[Number], Field(min_length=1, max_length=MOST_POINTS)]
    y: Annotated[list[Number], Field(min_length=1, max_length=MOST_POINTS)]
    low: Number
    high: Number
    order: Order = "as given"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    lr: Positive = 0.5
    batch_size: Annotated[int, Field(ge=1, le=MOST_POINTS)] = 1
    momentum: Annotated[float, Field(ge=0, le=0.999)] = 0.0
    gamma: Positive = 1.0
    width: Positive
    block_size: Annotated[int, Field(ge=1, le=MOST_POINTS)] = 8
    block_ridge: Annotated[float, Field(ge=0, le=LARGEST)] = 0.1
    start: Number = 0.0
    seen: Annotated[int, Field(ge=0, le=MOST_POINTS)]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(self.x) != len(self.y):
            raise ValueError(f"{len(self.x)} x for {len(self.y)} y; expected as many")
        if self.seen > len(self.x):
            raise ValueError(f"{self.seen} samples seen of {len(self.x)}; expected no more")
        if not self.low < self.high:
            raise ValueError(
                f"the picture goes from {self.low} to {self.high}; expected low < high"
            )
        return self

    @property
    def learner(self) -> SGD:
        """The online learner."""
        return SGD(lr=self.lr, batch_size=self.batch_size, momentum=self.momentum)

    def stream(self) -> np.ndarray:
        """(n,) the numbers of the points in the order in which they are learned."""
        if self.order == "random":
            return np.random.default_rng(self.seed).permutation(len(self.x))
        if self.order == "by x":
            return np.argsort(self.x, kind="stable")
        numbers = np.arange(len(self.x))
        return numbers[::-1] if self.order == "reversed" else numbers
