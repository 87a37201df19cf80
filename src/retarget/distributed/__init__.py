"""The same functions on a Dask cluster, for kernels that are larger than memory.

Needs the extra: `pip install ".[dask]"`. Nothing else in retarget imports this package.
"""

from retarget.errors import missing_extra

try:
    import dask.array  # noqa: F401
    import distributed  # noqa: F401
except ImportError as error:
    raise missing_extra("retarget.distributed needs Dask", error, "dask") from error

from retarget.distributed.arrays import gram, learn
from retarget.distributed.cluster import connect
from retarget.distributed.targets import (
    corrected_targets,
    effective_targets,
    iterative_targets,
    offline_coefficients,
    online_coefficients,
)

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
