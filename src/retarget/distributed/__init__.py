"""The same work on a Dask cluster, and kernels that are bigger than memory.

Needs the extra: `pip install "retarget[dask]"`. Nothing else of retarget imports this package.
"""

from retarget.errors import MissingExtraError

try:
    import dask.array  # noqa: F401
    import distributed  # noqa: F401
except ImportError as error:
    raise MissingExtraError(
        f'retarget.distributed needs Dask ({error}); install it with: pip install "retarget[dask]"'
    ) from error

from retarget.distributed.cluster import connect
from retarget.distributed.correction import corrected_targets
from retarget.distributed.gram import gram
from retarget.distributed.iterative import iterative_targets
from retarget.distributed.learn import learn
from retarget.distributed.offline import offline_coefficients
from retarget.distributed.online import online_coefficients
from retarget.distributed.shift import effective_targets

__all__ = [
    "connect",
    "corrected_targets",
    "effective_targets",
    "gram",
    "iterative_targets",
    "learn",
    "offline_coefficients",
    "online_coefficients",
]
