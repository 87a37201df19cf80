"""The kernel of a network of the user's own."""

import torch

from retarget.errors import InvalidInputError
from retarget.import_path import imported_network
from retarget.kernels import EmpiricalNTK


def network_kernel(path: str, features: int) -> EmpiricalNTK:
    """The empirical NTK of the network that "package.module:factory" makes, in float64.

    Args:
        path: The import path of the factory.
        features: How many numbers a row has.

    Raises:
        InvalidInputError: There is no such network, or it does not take rows of this length.
        InvalidTypeError: It is no network.
    """
    network = imported_network(path, "network").double().eval()
    try:
        with torch.no_grad():
            network(torch.zeros(2, features, dtype=torch.float64))
    except Exception as error:  # the user's own code: any kind
        raise InvalidInputError(
            f"the network {path!r} does not take rows of {features} features, which is what the "
            f"table's columns make: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        ) from error
    return EmpiricalNTK(network)
