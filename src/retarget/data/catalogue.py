"""Everything that can be downloaded. A new data set is one more entry here."""

from retarget.data.backbones import RESNET18
from retarget.data.cifar10 import CIFAR10
from retarget.data.fetch import DataSet
from retarget.data.mnist import MNIST
from retarget.errors import InvalidInputError
from retarget.text import did_you_mean

DATA_SETS = {data_set.name: data_set for data_set in (MNIST, CIFAR10, RESNET18)}


def find_data_set(name: str) -> DataSet:
    """A data set by name.

    Example:
        >>> find_data_set("mnist").download_size
        11594722
    """
    if name in DATA_SETS:
        return DATA_SETS[name]
    near = did_you_mean(name.lower(), DATA_SETS)
    raise InvalidInputError(
        f"there is no data set {name!r}; "
        + (f"did you mean {near!r}? " if near else "")
        + f"known: {', '.join(DATA_SETS)}"
    )
