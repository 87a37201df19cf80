"""MNIST under the paper's infinite-width conv net: what Fig. 2 and Fig. 5 have in common."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
from torch import nn

import retarget.kernels
from retarget.data.cache import cache_folder, cached_array, data_set_checksums
from retarget.data.digits import one_hot
from retarget.data.fetch import MNIST, data_folder
from retarget.data.mnist import load_mnist
from retarget.errors import DivergedError, InvalidInputError
from retarget.experiments.experiment import Config, Count
from retarget.experiments.runs.store import source_hash
from retarget.kernels import InfiniteNTK, Kernel
from retarget.learners import SGD
from retarget.theory.online import online_learning_curve

CLASSES = 10


class MnistConfig(Config):
    """How many images are in the stream, in the test, and between two evaluations."""

    train: Count
    test: Count
    evaluate_every: Count


@dataclass(frozen=True)
class MnistStream:
    """A stream of images by their kernel, and a test set."""

    K: np.ndarray
    Y: np.ndarray
    K_test: np.ndarray
    labels: np.ndarray
    labels_test: np.ndarray

    def class_by_class(self) -> "MnistStream":
        """The same stream, all zeros first, then all ones, and so on."""
        order = np.argsort(self.labels, kind="stable")
        return MnistStream(
            self.K[np.ix_(order, order)],
            self.Y[order],
            self.K_test[:, order],
            self.labels[order],
            self.labels_test,
        )

    def scores(
        self, predictions: np.ndarray, stops: list[int], **labels: str | float
    ) -> pl.DataFrame:
        """Accuracy and mean squared error along the stream, of predictions (stops, m, classes)."""
        accuracy = np.mean(predictions.argmax(axis=2) == self.labels_test, axis=1)
        with np.errstate(over="ignore"):  # a learner about to diverge: its error is infinite
            error = np.mean((predictions - one_hot(self.labels_test, CLASSES)) ** 2, axis=(1, 2))
        accuracy[np.isnan(predictions).any(axis=(1, 2))] = np.nan
        columns = {"samples": stops, "accuracy": accuracy, "error": error}
        return pl.DataFrame(columns).with_columns(**{k: pl.lit(v) for k, v in labels.items()})

    def online_predictions(self, Z: np.ndarray, learner: SGD, stops: list[int]) -> np.ndarray:
        """Predictions at the test images along the stream; NaN where the learner has diverged."""
        try:
            return online_learning_curve(self.K, Z, self.K_test, learner, stops)
        except DivergedError as error:
            shape = (len(stops), len(self.labels_test), CLASSES)
            predictions = np.full(shape, np.nan)
            before = [stop for stop in stops if stop <= error.step * learner.batch_size]
            if before:
                n = before[-1]
                predictions[: len(before)] = online_learning_curve(
                    self.K[:n, :n], Z[:n], self.K_test[:, :n], learner, before
                )
            return predictions


def paper_net() -> nn.Sequential:
    """Two 3 x 3 convolutions, each with ReLU and 2 x 2 average pooling, and a dense read-out."""
    return nn.Sequential(
        nn.Conv2d(1, 1, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(1, 1, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(49, 1, bias=False),
    )


def mnist_checksums() -> dict[str, str]:
    """Checksums of the files that every run reads."""
    return data_set_checksums(MNIST, data_folder())


def mnist_stream(config: MnistConfig) -> MnistStream:
    """Images drawn by the seed, every pixel whitened, and their kernel."""
    mnist = load_mnist()
    sizes = {"train": config.train, "test": config.test}
    for split, images in (("train", mnist.train_images), ("test", mnist.test_images)):
        if sizes[split] > len(images):
            raise InvalidInputError(
                f"{split} = {sizes[split]}, but MNIST here has {len(images)} {split} images"
            )
    rng = np.random.default_rng(config.seed)
    train = rng.choice(len(mnist.train_images), config.train, replace=False)
    test = rng.choice(len(mnist.test_images), config.test, replace=False)
    images = np.concatenate(
        [_whitened(mnist.train_images, train), _whitened(mnist.test_images, test)]
    )
    gram = cached_gram(InfiniteNTK(paper_net()), images[:, None]).astype(float)
    n = config.train
    labels = mnist.train_labels[train].astype(int)
    return MnistStream(
        gram[:n, :n],
        one_hot(labels, CLASSES),
        gram[n:, :n],
        labels,
        mnist.test_labels[test].astype(int),
    )


def evaluation_stops(config: MnistConfig) -> list[int]:
    """After every few samples, and at the end."""
    stops = range(config.evaluate_every, config.train, config.evaluate_every)
    return [*stops, config.train]


def cached_gram(kernel: Kernel, samples: np.ndarray) -> np.ndarray:
    """`kernel(samples)`, computed once and kept on disk for the same samples, kernel and code.

    Args:
        kernel: A kernel that `to_dict` describes.
        samples: (n, ...) samples.
    """
    description = json.dumps(kernel.to_dict(), sort_keys=True)
    content = (description, _code_of_kernels(), samples)
    return cached_array(cache_folder("kernels"), "gram", content, lambda: kernel(samples))


@cache
def _code_of_kernels() -> str:
    return source_hash(Path(retarget.kernels.__file__).parent)


def _whitened(images: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The chosen images, each pixel less its mean and over its deviation in the whole set."""
    mean = images.mean(axis=0)
    # two passes over the bytes, in portions: the set in float64 would take 376 MB
    squares = sum(np.square(part - mean).sum(axis=0) for part in np.array_split(images, 20))
    deviation = np.sqrt(squares / len(images))
    whitened: np.ndarray = ((images[chosen] - mean) / (deviation + 1e-6)).astype(np.float32)
    return whitened
