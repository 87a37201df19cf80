r"""The optimizer's memory: how far a step taken in the past still moves the weights now.

`torch.optim.SGD` carries two things from step to step, the weights $w$ and (minus) its velocity
$v$. With $g_s = \Phi_s^\top E_s$ the summed errors of mini-batch $s$ times their features, $r_s$
the factor of the loss's reduction, $\lambda$ the weight decay and $\mu$ the momentum,

    heavy ball   v' = mu v - lambda w + r g        w' = w + eta v'
    Nesterov     v' the same                       w' = w + eta (r g - lambda w + mu v')

Both are linear: $(w', v') = M_s (w, v) + u_s g_s$ with a 2 x 2 matrix of numbers and

    heavy ball   M = [[1 - eta lambda,          eta mu  ], [-lambda, mu]]   u = r (eta, 1)
    Nesterov     M = [[1 - eta lambda (1 + mu), eta mu^2], [-lambda, mu]]   u = r (eta (1 + mu), 1)

so the weights before step $t$ are $\sum_{i<t} c(t, i)\, g_i$ (plus the remainder of the start),
where $c(t, i)$ is the first entry of $M_{t-1} \cdots M_{i+1} u_i$. For plain SGD it is
$\eta_i r_i$.

With momentum the weights go on moving when no more errors are made. Where they end (at the
rate of the last step, without decay) is again linear,

    heavy ball   w + eta mu / (1 - mu) v           Nesterov   w + eta mu^2 / (1 - mu) v

and $c_\infty(t, i)$ is the weight of step $i$'s errors in it. Without momentum it is $c(t, i)$.
These few numbers are computed in float64, whatever the precision of the kernel.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from retarget.errors import InvalidInputError
from retarget.learners import SGD

KEPT_LENGTH = 512  # samples; with momentum, a response holds the square of this


@dataclass(frozen=True, eq=False)  # compared by identity, so that results for it can be kept
class StepResponse:
    """The optimizer's memory over a few consecutive steps, counted from the first of them.

    Attributes:
        step_of: (m,) the step that each sample belongs to.
        carry: (steps + 1, 2) what the weights before step s keep of (w, v) before step 0.
        coasting_carry: The same as carry, for the weights at which the learner would end.
        transfer: (2, 2) what (w, v) after the last step keep of (w, v) before step 0.
        deposit: (2, steps) the weight of each step's errors in (w, v) after the last step; (1,
            steps) without a memory, in w alone.
        responses: (2, steps + 1, steps) c(s, i) and c_inf(s, i): the weight of step i's errors in
            the weights before step s, and in those at which they would end. None for plain SGD, for
            which both equal the deposit at any time.
    """

    step_of: np.ndarray
    carry: np.ndarray
    coasting_carry: np.ndarray
    transfer: np.ndarray
    deposit: np.ndarray
    responses: np.ndarray | None


def step_response(learner: SGD, first_step: int, m: int) -> StepResponse:
    """The memory over the next `m` samples, of which the first starts step `first_step`."""
    if isinstance(learner.lr, float) and m <= KEPT_LENGTH:
        return _lasting_response(learner, m)
    return _response(learner, first_step, m)


@lru_cache(maxsize=8)  # portions of a stream are usually of one length
def _lasting_response(learner: SGD, m: int) -> StepResponse:
    """At a constant rate the response is the same over any m samples."""
    return _response(learner, 0, m)


@np.errstate(over="ignore", invalid="ignore")  # a learner that diverges: its errors tell
def _response(learner: SGD, first_step: int, m: int) -> StepResponse:
    steps = learner.steps(m)
    step_of = np.arange(m) // learner.batch_size
    carry = np.zeros((steps + 1, 2))
    transfer = np.eye(2)
    if not has_memory(learner):  # c(t, i) = eta_i r_i: no need to go step by step
        carry[:, 0] = 1.0
        rates = _rates(learner, first_step, steps) * _reductions(learner, m)
        return StepResponse(step_of, carry, carry, transfer, rates[None], None)
    deposit = np.zeros((2, steps))
    carry[0, 0] = 1.0
    coasting_carry = carry.copy()
    responses = np.zeros((2, steps + 1, steps))
    for s in range(steps):
        M, u = step_law(learner, first_step + s, _batch_length(learner, s, m))
        transfer = M @ transfer
        deposit[:, :s] = M @ deposit[:, :s]
        deposit[:, s] = u
        coast = _coast(M)
        carry[s + 1] = transfer[0]
        coasting_carry[s + 1] = coast @ transfer
        responses[0, s + 1] = deposit[0]
        responses[1, s + 1] = coast @ deposit
    return StepResponse(step_of, carry, coasting_carry, transfer, deposit, responses)


def final_response(learner: SGD, n: int, first_step: int = 0) -> np.ndarray:
    """(n,) how much of each sample's error is in the weights at the end of the `n` samples."""
    if not has_memory(learner):
        response = _rates(learner, first_step, learner.steps(n)) * _reductions(learner, n)
    elif isinstance(learner.lr, float):
        response = _lasting_responses(learner, n)
    else:
        response = _from_the_end(learner, n, first_step)
    by_sample: np.ndarray = response[np.arange(n) // learner.batch_size]
    return by_sample


def _from_the_end(learner: SGD, n: int, first_step: int) -> np.ndarray:
    """(steps,) the final response of each step, if every step has its own M."""
    steps = learner.steps(n)
    response = np.empty(steps)
    row = np.array([1.0, 0.0])  # the first row of M_last ... M_{s+1}, built from the end
    for s in reversed(range(steps)):
        M, u = step_law(learner, first_step + s, _batch_length(learner, s, n))
        response[s] = row @ u
        row = row @ M
    return response


def _lasting_responses(learner: SGD, n: int) -> np.ndarray:
    """(steps,) the same at a constant rate: there is one M, whose powers are found by doubling."""
    steps = learner.steps(n)
    power, u = step_law(learner, 0, learner.batch_size)
    rows = np.zeros((steps, 2))  # the first row of M^0, M^1, ...
    rows[0, 0] = 1.0
    known = 1
    while known < steps:
        more = min(known, steps - known)
        rows[known : known + more] = rows[:more] @ power
        power = power @ power
        known = known + more
    response: np.ndarray = (rows @ u)[::-1].copy()
    response[-1] = step_law(learner, 0, _batch_length(learner, steps - 1, n))[1][0]
    return response


def remaining_start(learner: SGD, n: int, epochs: int = 1, first_step: int = 0) -> np.ndarray:
    """(epochs n + 1,) what is left of the start before each sample is met, and at the end."""
    steps = epochs * learner.steps(n)
    remaining = np.empty(steps + 1)
    state = np.array([1.0, 0.0])
    for s in range(steps):
        remaining[s] = state[0]
        state = step_law(learner, first_step + s, 1)[0] @ state
    remaining[steps] = state[0]
    of_epochs = remaining[:-1].reshape(epochs, -1)[:, np.arange(n) // learner.batch_size]
    return np.append(of_epochs.ravel(), remaining[-1])


def require_lasting_start(initial: object, learner: SGD) -> None:
    """Rejects a starting function that weight decay would fade: no targets can make up for that."""
    if initial is not None and fades_start(learner):
        raise InvalidInputError(
            "initial was given with weight_decay > 0, which fades the starting function itself, so "
            "that no targets lead to the offline learner; use weight_decay=0, or leave initial out"
        )


def _batch_length(learner: SGD, step: int, n: int) -> int:
    return min(learner.batch_size, n - step * learner.batch_size)


def _rates(learner: SGD, first_step: int, steps: int) -> np.ndarray:
    if isinstance(learner.lr, float):
        return np.full(steps, learner.lr)
    return np.array([learner.rate(first_step + s) for s in range(steps)])


def _reductions(learner: SGD, n: int) -> np.ndarray:
    """(steps,) the factor of the loss's reduction in each step over `n` samples."""
    steps = learner.steps(n)
    factors = np.full(steps, _reduction(learner, learner.batch_size))
    factors[-1] = _reduction(learner, _batch_length(learner, steps - 1, n))
    return factors


def _reduction(learner: SGD, batch_length: int) -> float:
    return 1.0 if learner.reduction == "sum" else 1.0 / batch_length


def step_law(learner: SGD, step: int, batch_length: int) -> tuple[np.ndarray, np.ndarray]:
    """M and u of one step: everything that this package knows about how a learner steps."""
    eta = learner.rate(step)
    mu = learner.momentum
    decay = learner.weight_decay
    r = _reduction(learner, batch_length)
    if learner.nesterov:
        M = np.array([[1 - eta * decay * (1 + mu), eta * mu**2], [-decay, mu]])
        return M, r * np.array([eta * (1 + mu), 1.0])
    return np.array([[1 - eta * decay, eta * mu], [-decay, mu]]), r * np.array([eta, 1.0])


def has_memory(learner: SGD) -> bool:
    """Whether a step's effect on the weights keeps changing after the step."""
    M = _unit_law(learner)[0]
    return fades_start(learner) or bool(M[0, 1] != 0)


def fades_start(learner: SGD) -> bool:
    """Whether the weights that a stream begins with are forgotten without any error."""
    M = _unit_law(learner)[0]
    return bool(M[0, 0] != 1 or M[1, 0] != 0)


def _unit_law(learner: SGD) -> tuple[np.ndarray, np.ndarray]:
    """M and u of a step at the rate 1."""
    return step_law(replace(learner, lr=1.0), 0, 1)


def lasting_effect(learner: SGD) -> float:
    """How far an error moves the weights in the end, in units of the rate and without decay."""
    M, u = step_law(replace(learner, lr=1.0, weight_decay=0.0, reduction="sum"), 0, 1)
    return float(_coast(M) @ u)


def _coast(M: np.ndarray) -> np.ndarray:
    """(2,) what the weights will have of (w, v) if no more errors are made."""
    return np.array([1.0, M[0, 1] / (1 - M[1, 1])])
