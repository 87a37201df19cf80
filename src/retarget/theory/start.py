"""When a starting function that is not zero can be compared with an offline learner."""

from retarget.errors import InvalidInputError
from retarget.learners import SGD


def require_lasting_start(initial: object, learner: SGD) -> None:
    """Refuses a starting function that weight decay would fade.

    The offline learner keeps the start whole and adds a sum over the samples to it. Weight decay
    takes a part of the start away, and no targets can make up for a function outside that sum.
    """
    if initial is not None and learner.weight_decay > 0:
        raise InvalidInputError(
            "initial was given with weight_decay > 0, which fades the starting function itself: no "
            "targets make such a learner equal to an offline learner from the same start; use "
            "weight_decay=0, or leave initial out"
        )
