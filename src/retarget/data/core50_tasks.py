"""The New-Classes protocol of CORe50: which objects come in which task."""

import numpy as np

from retarget.data.core50_frames import OBJECTS, OBJECTS_A_CATEGORY

OBJECTS_A_TASK = 5


def new_classes_tasks(seed: int) -> list[list[int]]:
    """Nine tasks that share no object: ten objects in the first, five in each of the others.

    The first has one object of each category, in the order of the categories; the others have the
    rest, shuffled. The seed decides both.

    Returns:
        The labels of the objects, 0 to 49, of each task.

    Example:
        >>> [len(task) for task in new_classes_tasks(0)]
        [10, 5, 5, 5, 5, 5, 5, 5, 5]
        >>> [label // 5 for label in new_classes_tasks(0)[0]]
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    random = np.random.default_rng(seed)
    by_category = np.arange(OBJECTS).reshape(-1, OBJECTS_A_CATEGORY)
    first = by_category[:, 0] + random.integers(OBJECTS_A_CATEGORY, size=len(by_category))
    rest = random.permutation(np.setdiff1d(by_category, first))
    return [first.tolist(), *rest.reshape(-1, OBJECTS_A_TASK).tolist()]
