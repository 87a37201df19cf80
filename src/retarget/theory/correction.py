r"""What an online learner has learned, as shifted targets (Theorem 3.2), and its correction (4.1).

Also the two terms of the iterative correction, block by block (Eq. 16, 17). With samples as rows,
$p$ the past and $n$ a block, the targets of the block are

    Z_n = Y_n + C_on (Y_n - f_on) + C_off (f_off - Y_n)

    C_on  = W - I               W = (I/eta + K^bL_nn) (gamma_o I + K_nn)^-1
    C_off = gamma W Q^-1        Q = gamma I + K_nn - K_np (gamma I + K_pp)^-1 K_pn

where $f_{on}$ and $f_{off}$ are what the two learners predict for the block before they have seen
it. $Q = L_{nn} L_{nn}^\top$ with $L_{nn}$ the block's own corner of the Cholesky factor of the
stream, so one factorization serves every block.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import ArrayT, as_targets, as_tensor, require_memory
from retarget.engine.cholesky import GrowingCholesky
from retarget.engine.condition import warn_if_meaningless
from retarget.engine.dual import DualLearner
from retarget.engine.followers import Exact, follow
from retarget.engine.lesson import diagonal_blocks
from retarget.engine.losses import Loss, check_targets, outputs
from retarget.engine.response import final_response, has_memory
from retarget.engine.settling import in_blocks, invert_blocks
from retarget.engine.stability import GrowthWatch, warn_of_large_targets
from retarget.engine.stream import SampleStream, equal_blocks
from retarget.errors import InvalidInputError, UnreachableTargetsError
from retarget.learners import SGD, require_learner
from retarget.scalars import as_count, as_non_negative
from retarget.settings import in_plain_torch
from retarget.theory.epochs import online_pass, repeated_targets
from retarget.theory.iterative import check_correction
from retarget.theory.online import loss_problem, offline_solution
from retarget.theory.problem import as_problem


@in_plain_torch
def effective_targets(
    K: ArrayT,
    Y: Any,
    learner: SGD,
    gamma: float,
    *,
    initial: Any = None,
    loss: Loss = "squared",
    epochs: int = 1,
) -> ArrayT:
    r"""The targets on which the offline learner learns what the online learner learned.

    $Y^e = (\gamma I + K)\, A$ with $A$ the online learner's dual coefficients (Theorem 3.2, Eq. 8).
    With cross-entropy it is $Y^e = \sigma(K A) + \gamma A$ (docs/theory.md, section 10). Use them
    to see what an online learner has really learned. They cost a few products $K Y$.

    Args:
        K: (n, n) Gram matrix of the stream, in stream order.
        Y: (n,) or (n, c) targets, in stream order.
        learner: The online learner.
        gamma: Ridge of the offline learner to compare with, 0 or more.
        initial: Values of the starting function on the stream, if it is not zero (only without
            weight decay).
        loss: `"squared"` or `"cross-entropy"` (for which `initial` is logits), for both learners.
        epochs: Passes over the stream, each in the same order; a schedule has one rate for each
            step of all of them. The time grows with their number, the memory does not.

    Returns:
        Effective targets with the shape of Y; the shift is their difference from Y.

    Examples:
        At the rate $1 / (\gamma + k(x, x))$ the newest sample is not shifted (Eq. 11); the one
        before it is, towards the error on the newest.

        >>> import numpy as np
        >>> K = np.array([[1.0, 0.5], [0.5, 1.0]])
        >>> effective_targets(K, np.array([1.0, 1.0]), SGD(lr=0.5), gamma=1.0)
        array([1.1875, 1.    ])
    """
    gamma = as_non_negative("gamma", gamma)
    problem = loss_problem(K, Y, initial, loss, lasting=learner)
    A = online_pass(problem, learner, loss, as_count("epochs", epochs))[1]
    logits = problem.K @ A if problem.start is None else problem.start + problem.K @ A
    return problem.give(outputs(logits, loss) + gamma * A)


@in_plain_torch
def corrected_targets(
    K: ArrayT,
    Y: Any,
    learner: SGD,
    gamma: float,
    *,
    initial: Any = None,
    loss: Loss = "squared",
    epochs: int = 1,
) -> ArrayT:
    r"""The targets on which the online learner learns what the offline learner learned.

    $Y^c = (I/\eta + K^L)(\gamma I + K)^{-1} Y$ (Theorem 4.1, Eq. 12), and its analogue for other
    learners. They need the whole stream in advance, and one Cholesky factorization ($n^3/3$
    multiplications); use `iterative_targets` if the targets must be causal.
    With cross-entropy they are $Y^c = \sigma(K^L A) + A/\eta$ with $A$ the offline learner's dual
    coefficients: rows still sum to 1, but entries leave [0, 1], which PyTorch's `cross_entropy`
    and `binary_cross_entropy_with_logits` allow.

    Args:
        K: (n, n) Gram matrix of the stream, in stream order.
        Y: (n,) or (n, c) targets, in stream order.
        learner: The online learner.
        gamma: Ridge of the offline learner, 0 or more; with 0, K must be positive definite.
        initial: Values of the starting function on the stream, if it is not zero (only without
            weight decay).
        loss: `"squared"` or `"cross-entropy"` (for which `initial` is logits), for both learners.
        epochs: Passes over the stream, each in the same order. With more than one, the n targets
            lead the learner to the offline one if it trains on the same targets in every epoch: put
            them into your data loader once (docs/theory.md, section 11). Finding them takes a few
            dozen runs of all epochs, or a few hundred with cross-entropy.

    Returns:
        Corrected targets with the shape of Y.

    Raises:
        UnreachableTargetsError: No targets lead there, because the learner forgets what it learned
            by the end, or is unstable over several epochs.

    Examples:
        They are the inverse of the effective targets.

        >>> import numpy as np
        >>> K, learner = np.array([[1.0, 0.5], [0.5, 1.0]]), SGD(lr=0.5)
        >>> shifted = effective_targets(K, np.array([1.0, 1.0]), learner, gamma=1.0)
        >>> corrected_targets(K, shifted, learner, gamma=1.0)
        array([1., 1.])
    """
    gamma = as_non_negative("gamma", gamma)
    require_learner(learner)
    problem = loss_problem(K, Y, initial, loss, lasting=learner, factored=True)
    learner.rates(len(problem.K), as_count("epochs", epochs))
    coefficients = offline_solution(problem, gamma, loss)
    if epochs > 1:
        targets = repeated_targets(problem, coefficients, learner, epochs, loss)
        if loss != "squared":
            warn_of_large_targets(float(targets.abs().max()))
        elif problem.start is not None:
            targets = targets + problem.start
        return problem.give(targets)
    gram = problem.K
    watch = GrowthWatch(learner, lambda rows: gram[rows, rows], loss=loss)
    stream = SampleStream.of_matrix(gram, problem.Y, problem.start)
    targets = targets_reaching(coefficients, watch, stream)
    watch.warn_once()
    return problem.give(targets)


@in_plain_torch
def discrepancy(
    K: ArrayT,
    Z: Any,
    Y: Any,
    learner: SGD,
    gamma: float,
    *,
    initial: Any = None,
    loss: Loss = "squared",
) -> float:
    r"""The distance between the online learner trained on Z and the offline learner trained on Y.

    It is the norm of their difference in the kernel's function space (RKHS),
    $\lVert f_{on}[Z] - f_{off}[Y] \rVert_{\mathcal H} = \sqrt{\operatorname{tr} D^\top K D}$ with
    $D$ the difference of their dual coefficients, all outputs together. The paper minimizes its
    square (Eq. 14) or half its square (Eq. 15, where the term in $\gamma_o$ is added).

    The distance bounds every prediction: at a query $x$ the outputs of the two learners differ by
    at most $\sqrt{k(x, x)}$ times the distance (in the Euclidean norm over outputs). It costs one
    Cholesky factorization, $n^3/3$ multiplications.

    Args:
        K: (n, n) Gram matrix of the stream, in stream order.
        Z: Targets of the online learner, with the shape of Y.
        Y: (n,) or (n, c) targets of the offline learner, in stream order.
        learner: The online learner, compared as it is at the end of the stream (with momentum,
            before it has come to rest).
        gamma: Ridge of the offline learner, 0 or more.
        initial: Values of the starting function on the stream, if it is not zero (only without
            weight decay).
        loss: `"squared"` or `"cross-entropy"` (for which `initial` is logits), for both learners.

    Returns:
        The distance, 0 or more; for the distance of one output, pass that column of Z and Y.

    Examples:
        On true targets the online learner misses the offline one; on corrected ones it does not.

        >>> import numpy as np
        >>> K, Y, learner = np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([1.0, 1.0]), SGD(lr=0.5)
        >>> round(discrepancy(K, Y, Y, learner, gamma=1.0), 4)
        0.0901
        >>> discrepancy(K, corrected_targets(K, Y, learner, 1.0), Y, learner, gamma=1.0) < 1e-12
        True
    """
    gamma = as_non_negative("gamma", gamma)
    problem = loss_problem(K, Y, initial, loss, lasting=learner, factored=True)
    taught = as_targets("Z", Z)
    if taught.shape != problem.Y.shape:
        raise InvalidInputError(
            f"Z has shape {np.shape(Z)}, but Y has shape {np.shape(Y)}; expected the same shape: a "
            "target of the online learner for each target of the offline one"
        )
    if taught.device != problem.K.device:
        raise InvalidInputError(
            f"Z is on {taught.device}, but K is on {problem.K.device}; move both to one device"
        )
    check_targets("Z", taught, loss)
    dtype = torch.promote_types(problem.K.dtype, taught.dtype)
    start = None if problem.start is None else problem.start.to(dtype)
    problem = replace(problem, K=problem.K.to(dtype), Y=problem.Y.to(dtype), start=start)
    online = online_pass(replace(problem, Y=taught.to(dtype)), learner, loss)[1]
    D = online - offline_solution(problem, gamma, loss)
    scale = float(D.abs().max())  # squares of very large or small numbers are not representable
    D = D / (scale or 1.0)
    # K is positive semidefinite up to rounding, and so is this square
    return scale * math.sqrt(max(float((D * (problem.K @ D)).sum()), 0.0))


def targets_reaching(coefficients: Tensor, watch: GrowthWatch, stream: SampleStream) -> Tensor:
    """(n, c) the targets that lead the learner of `watch` to these dual coefficients."""
    learner = watch.learner
    dual = DualLearner(learner, capacity=len(coefficients))
    exact = Exact(dual, errors_reaching(coefficients, learner), watch, watch.loss)
    follow(stream.windows(learner.batch_size), [exact])
    return exact.targets


def errors_reaching(coefficients: Tensor, learner: SGD) -> Tensor:
    """The errors whose steps give the n samples these dual coefficients (n, c)."""
    n = len(coefficients)
    weight = coefficients.new_tensor(final_response(learner, n))
    lost = weight.abs() <= torch.finfo(weight.dtype).eps * weight.abs().max()
    if lost.any():
        row = int(lost.nonzero()[0, 0])
        raise UnreachableTargetsError(
            f"sample {row} is forgotten by the end of the {n} samples (its step keeps "
            f"{weight[row].item():.2g} of its effect), so no target for it can be exact; use less "
            "weight decay or momentum, or iterative_targets"
        )
    return coefficients / weight[:, None]


@dataclass(frozen=True, eq=False)
class CorrectionTerms:
    """The matrices by which the iterative correction moves the targets of one block.

    `correction_terms` returns one for each block, as arrays of the caller's library. Look at them
    to see why targets were moved.

    Attributes:
        rows: The samples of the block, as a range of the stream.
        online: (b, b) $C_{on}$, which acts on the online learner's error, $Y_n - f_{on}$.
        offline: (b, b) $C_{off}$, which acts on the offline learner's, $f_{off} - Y_n$.
        modulation: (b, b) $I + C_{on}$, by which the online learner's error is multiplied before
            it is learned. Its diagonal is the factor on each sample's learning rate; the other
            entries pass part of one sample's error on to another sample of the block.
    """

    rows: slice
    online: Any
    offline: Any
    modulation: Any


@in_plain_torch
def correction_terms(
    K: Any, learner: SGD, gamma: float, block_size: int, ridge: float = 0.0
) -> list[CorrectionTerms]:
    r"""The matrices $C_{on}$ and $C_{off}$ of Eq. 17 for every block of the iterative correction.

    `iterative_targets` moves the targets of a block in two ways (Eq. 16): by $C_{on}$ times the
    online learner's error, which amounts to another learning rate for each sample, and by
    $C_{off}$ times the offline learner's error, which brings in what the past says about the
    block. Neither depends on the targets, only on the inputs and their order.

    Args:
        K: (n, n) Gram matrix of the stream, in stream order.
        learner: The online learner: plain SGD, with any batch size, schedule and reduction.
        gamma: Ridge of the offline learner, 0 or more.
        block_size: Samples whose targets are found together, a multiple of the batch size. The
            last block may be shorter.
        ridge: $\gamma_o$ of Eq. 15. With 0, a block whose kernel is singular uses the
            pseudo-inverse of that kernel.

    Returns:
        The terms of each block, in stream order.

    Examples:
        A single sample at the rate 1/2 and $k(x, x) = 1$: to reach its aim in one step its error
        has to be doubled.

        >>> import numpy as np
        >>> (block,) = correction_terms(np.array([[1.0]]), SGD(lr=0.5), gamma=1.0, block_size=1)
        >>> block.modulation, block.online, block.offline
        (array([[2.]]), array([[1.]]), array([[1.]]))
    """
    gamma, ridge = check_correction(learner, gamma, block_size, ridge, "both", "corrected")
    if has_memory(learner):
        raise InvalidInputError(
            f"the learner has momentum = {learner.momentum:g} and weight_decay = "
            f"{learner.weight_decay:g}; expected plain SGD, for which f_on does not change within "
            "a block: iterative_targets corrects for other learners too"
        )
    gram = as_tensor("K", K)
    problem = as_problem(K, gram.new_zeros((*gram.shape[:1], 1)))
    n = len(problem.K)
    learner.rates(n)
    require_memory(
        f"the terms of {n} samples in blocks of {block_size}",
        n * n / 2 + 3 * n * min(block_size, n),
        problem.K,
        "use a shorter stream, smaller blocks or float32",
    )
    gram = problem.K
    rates = problem.K.new_tensor(final_response(learner, n))
    factor = GrowingCholesky(gamma, lambda rows: gram[rows, rows])
    terms = []
    condition = 1.0
    for rows, size in equal_blocks(0, n, block_size, "corrected", gram.device):
        new = factor.extend(gram[rows, : rows.stop])
        factor.commit(new)
        steps = _own_steps(gram[rows, rows], rates[rows], size, learner.batch_size)
        blocks = diagonal_blocks(gram[rows, rows], size)
        inverses = invert_blocks(blocks, ridge, rows.start, in_range=True)
        condition = max(condition, inverses.condition)
        identity = torch.eye(size, dtype=gram.dtype, device=gram.device)
        modulation = steps @ in_blocks(inverses.solve(identity.repeat(len(blocks), 1)), size)
        corner = diagonal_blocks(new.corner, size)
        offline = gamma * torch.cholesky_solve(modulation.mT, corner).mT
        online = modulation - identity
        for i in range(len(modulation)):
            first = rows.start + i * size
            matrices = (problem.give(part[i]) for part in (online, offline, modulation))
            terms.append(CorrectionTerms(slice(first, first + size), *matrices))
    warn_if_meaningless("the kernel of a block", condition, gram.dtype)
    factor.warn_once()
    return terms


def _own_steps(gram: Tensor, rates: Tensor, size: int, batch: int) -> Tensor:
    """(blocks, b, b) I/eta + K^bL of each block, by which its coefficients are multiplied."""
    step = torch.arange(size, device=gram.device) // batch
    steps = diagonal_blocks(gram, size) * (step[:, None] > step)
    steps.diagonal(dim1=1, dim2=2).copy_((1 / rates).reshape(-1, size))
    return steps
