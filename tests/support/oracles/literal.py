"""The paper's formulas, typed as printed: samples are columns, general solves, explicit inverses.

Everything here is slow and obviously right. Callers hand over rows (n, c) and get rows back.
"""

import numpy as np
from numpy.linalg import inv


def upper(K, batch=1):
    """K^U (Eq. A.1); with mini-batches K^bU."""
    block = np.arange(len(K)) // batch
    return np.where(block[:, None] < block[None, :], K, 0.0)


def identity(K):
    return np.eye(len(K))


def f_off(Y, K, k_query, gamma):
    """Eq. 2. k_query is (n, m)."""
    return (Y.T @ inv(gamma * identity(K) + K) @ k_query).T


def f_on(Y, K, k_query, eta, batch=1):
    """Eq. 6, and Eq. 7 for mini-batches."""
    return (Y.T @ inv(identity(K) / eta + upper(K, batch)) @ k_query).T


def f_on_regularized(Y, K, k_query, eta, gamma):
    """Lemma 3.1: SGD with weight decay gamma."""
    n = len(K)
    D = np.diag((1 - eta * gamma) ** (n - np.arange(1, n + 1)))
    inner = identity(K) / eta + upper(K) / (1 - eta * gamma)
    return (Y.T @ D @ inv(inner) @ k_query).T


def effective(Y, K, eta, gamma, batch=1):
    """Eq. 8."""
    return (Y.T @ inv(identity(K) / eta + upper(K, batch)) @ (gamma * identity(K) + K)).T


def corrected(Y, K, eta, gamma, batch=1):
    """Eq. 12."""
    return (Y.T @ inv(gamma * identity(K) + K) @ (identity(K) / eta + upper(K, batch))).T


def effective_by_steps(Y, K, eta, gamma):
    """Eq. 11, sample by sample."""
    Ye = np.zeros_like(Y)
    for t in range(len(Y)):
        past = slice(0, t)
        e = f_on(Y[past], K[past, past], K[past, [t]], eta)[0] - Y[t] if t else -Y[t]
        Ye[past] -= eta * np.outer(K[past, t], e)
        Ye[t] = Y[t] - (eta * (gamma + K[t, t]) - 1) * e
    return Ye


def corrected_by_steps(Y, K, eta, gamma):
    """Appendix A.5, sample by sample."""
    Yc = Y[:1] + (gamma + K[0, 0] - 1 / eta) / (gamma + K[0, 0]) * (0 - Y[:1])
    for t in range(1, len(Y)):
        past = slice(0, t)
        k = K[past, [t]]
        M = inv(gamma * np.eye(t) + K[past, past])
        q = (k.T @ M @ k).item()
        rho = 1 / (gamma + K[t, t] - q)
        c_q = (gamma + K[t, t] - 1 / eta) * rho
        e = f_off(Y[past], K[past, past], k, gamma)[0] - Y[t]
        C_K = M @ (np.eye(t) / eta + upper(K[past, past]))
        Yc = Yc + rho * np.outer(k.T @ C_K, e)
        Yc = np.vstack([Yc, Y[t] + c_q * e])
    return Yc


def correction_terms(K, p, n, eta, gamma, ridge=0.0, batch=1):
    """C_on and C_off (Eq. 17), as printed: they act from the right on samples as columns."""
    K_nn, K_pn, K_np, K_pp = K[n, n], K[p, n], K[n, p], K[p, p]
    I_n, I_p = np.eye(len(K_nn)), np.eye(len(K_pp))
    W = inv(ridge * I_n + K_nn) @ (I_n / eta + upper(K_nn, batch))
    Q = gamma * I_n + K_nn - K_np @ inv(gamma * I_p + K_pp) @ K_pn
    return W - I_n, gamma * inv(Q) @ W


def iterative(Y, K, eta, gamma, block, ridge=0.0, batch=1, parts="both", first_block="corrected"):
    """Proposition 4.2 (Eq. 16-17), two general solves with all the past in every block.

    `block` is the size of all blocks, or where each of them begins.
    """
    Z = np.zeros_like(Y)
    starts = [*range(0, len(Y), block)]
    for start, stop in zip(starts, [*starts[1:], len(Y)], strict=True):
        p, n = slice(0, start), slice(start, stop)
        if start == 0 and first_block == "plain":
            Z[n] = Y[n]
            continue
        K_pn, K_pp = K[p, n], K[p, p]
        on = f_on(Z[p], K_pp, K_pn, eta, batch) if start else np.zeros_like(Y[n])
        off = f_off(Y[p], K_pp, K_pn, gamma) if start else np.zeros_like(Y[n])
        C_on, C_off = correction_terms(K, p, n, eta, gamma, ridge, batch)
        Zn = Y[n].T.copy()
        if parts in ("both", "online"):
            Zn += (Y[n] - on).T @ C_on
        if parts in ("both", "offline"):
            Zn += (off - Y[n]).T @ C_off
        Z[n] = Zn.T
    return Z


def block_loss(Z, Y, K, eta, gamma, ridge, batch=1):
    """Eq. 15: squared RKHS distance of the online from the offline function, plus the ridge."""
    A_on = Z.T @ inv(identity(K) / eta + upper(K, batch))
    A_off = Y.T @ inv(gamma * identity(K) + K)
    gap = A_on - A_off
    return 0.5 * np.trace(gap @ K @ gap.T) + 0.5 * ridge * np.sum(A_on**2)


def kernel_sgd(K, Y, learner):
    """The coefficients and their velocity after SGD's steps on a sum over samples, one by one."""
    A, velocity, rates = np.zeros_like(Y), np.zeros_like(Y), learner.rates(len(Y))
    for step, start in enumerate(range(0, len(Y), learner.batch_size)):
        batch = slice(start, start + learner.batch_size)
        errors = K[batch] @ A - Y[batch]
        gradient = learner.weight_decay * A
        gradient[batch] += errors / (len(errors) if learner.reduction == "mean" else 1)
        velocity = learner.momentum * velocity + gradient
        nesterov = gradient + learner.momentum * velocity
        A = A - rates[step] * (nesterov if learner.nesterov else velocity)
    return A, velocity
