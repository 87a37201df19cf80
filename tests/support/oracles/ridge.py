"""Ridge regression as it is written down: all samples at once, in NumPy."""

import numpy as np


def centered(features, targets, weights, intercept):
    """Features and targets less their weighted means, and the means."""
    mean, target_mean = np.zeros(features.shape[1]), np.zeros(targets.shape[1])
    if intercept:
        mean = np.average(features, axis=0, weights=weights)
        target_mean = np.average(targets, axis=0, weights=weights)
    return features - mean, targets - target_mean, mean, target_mean


def ridge(features, targets, gamma, weights=None, intercept=False):
    """The weights (m, c) and the intercept (c,) that minimize the penalized squares."""
    w = np.ones(len(features)) if weights is None else np.asarray(weights)
    phi, y, mean, target_mean = centered(features, targets, w, intercept)
    C = phi.T @ np.diag(w) @ phi
    W = np.linalg.solve(C + gamma * np.eye(len(C)), phi.T @ np.diag(w) @ y)
    return W, target_mean - mean @ W


def predictions(features, targets, queries, gamma, weights=None, intercept=False):
    W, b = ridge(features, targets, gamma, weights, intercept)
    return queries @ W + b


def cross_validation(features, targets, gamma, weights=None, intercept=False):
    """Generalized cross-validation by the hat matrix, which makes the predictions of the targets.

    With weights, of the problem in which every row is multiplied by the root of its weight, and
    for as many samples as would be worth so much with weights that are the same.
    """
    w = np.ones(len(features)) if weights is None else np.asarray(weights)
    root = np.sqrt(w)[:, None]
    rows = root * features
    penalty = gamma * np.eye(features.shape[1])
    if intercept:
        rows = np.hstack([rows, root])
        penalty = np.pad(penalty, (0, 1))
    hat = rows @ np.linalg.solve(rows.T @ rows + penalty, rows.T)
    residual = root * targets - hat @ (root * targets)
    samples = w.sum() ** 2 / (w**2).sum()
    return (residual**2).sum() / w.sum() / (1 - np.trace(hat) / samples) ** 2
