"""The continual-learning lab: streams of tasks, one training loop, and methods as hooks into it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retarget.lab.history import (
        History,
        average_accuracy,
        backward_transfer,
        forgetting,
    )
    from retarget.lab.methods import Batch, LabelSmoothing, Method, Vanilla
    from retarget.lab.methods.corrected import Corrected, Led
    from retarget.lab.methods.ewc import EWC
    from retarget.lab.methods.replay import DER, ER, CumulativeReplay, Joint
    from retarget.lab.methods.tangent import LastLayer, Tangent
    from retarget.lab.streams import (
        LabeledData,
        TaskStream,
        class_incremental,
        classes_in_tasks,
        domain_pairs,
        shuffled,
    )
    from retarget.lab.training import Run, train

__all__ = [  # noqa: RUF022 (grouped by what they are for, not by the alphabet)
    # streams of tasks
    "TaskStream",
    "LabeledData",
    "domain_pairs",
    "class_incremental",
    "classes_in_tasks",
    "shuffled",
    # the loop
    "train",
    "History",
    "average_accuracy",
    "forgetting",
    "backward_transfer",
    # methods
    "Vanilla",
    "EWC",
    "CumulativeReplay",
    "ER",
    "DER",
    "LabelSmoothing",
    "Corrected",
    "Led",
    "Tangent",
    "LastLayer",
    "Joint",
    # for your own loop or method
    "Method",
    "Batch",
    "Run",
]


# `retarget reproduce --help` needs a module of this package, but not torch: each name is imported
# when it is used. Keep this in step with the imports above.
_MODULES = {
    "history": "History average_accuracy backward_transfer forgetting",
    "methods": "Batch LabelSmoothing Method Vanilla",
    "methods.corrected": "Corrected Led",
    "methods.ewc": "EWC",
    "methods.replay": "DER ER CumulativeReplay Joint",
    "methods.tangent": "LastLayer Tangent",
    "streams": "LabeledData TaskStream class_incremental classes_in_tasks domain_pairs shuffled",
    "training": "Run train",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'retarget.lab' has no attribute {name!r}")
    value = getattr(import_module(f"retarget.lab.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # the next lookup does not come here
    return value
