"""scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, which need no download."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class DigitsStream:
    """A stream of images (rows of 64 pixels in [0, 1]) with labels, and a test set."""

    x_train: np.ndarray
    labels_train: np.ndarray
    x_test: np.ndarray
    labels_test: np.ndarray


def digits_stream(seed: int) -> DigitsStream:
    """Returns the digits as a stream, class by class: all zeros first, then all ones, and so on.

    Args:
        seed: Seed for the split (a quarter is the test set) and for the order within each class.

    Examples:
        >>> stream = digits_stream(seed=0)
        >>> stream.x_train.shape, stream.labels_train[:3], stream.labels_train[-3:]
        ((1348, 64), array([0, 0, 0]), array([9, 9, 9]))
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    test, train = np.split(shuffled, [len(labels) // 4])
    train = train[np.argsort(labels[train], kind="stable")]
    return DigitsStream(images[train] / 16.0, labels[train], images[test] / 16.0, labels[test])
