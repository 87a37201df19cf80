"""The continual-learning lab: streams of tasks, one training loop, and methods as hooks into it."""

from retarget.continual.corrector import NetworkCorrector
from retarget.continual.history import (
    History,
    average_accuracy,
    backward_transfer,
    forgetting,
)
from retarget.continual.methods import Batch, LabelSmoothing, Method, Vanilla
from retarget.continual.methods.corrected import Corrected, Led
from retarget.continual.methods.ewc import EWC
from retarget.continual.methods.replay import DER, ER, CumulativeReplay, Joint
from retarget.continual.methods.tangent import LastLayer, Tangent
from retarget.continual.streams import (
    LabelledData,
    TaskStream,
    class_incremental,
    classes_in_tasks,
    domain_pairs,
    shuffled,
)
from retarget.continual.training import Run, train
from retarget.continual.trials import Trial

__all__ = [  # noqa: RUF022 (grouped by what they are for, not by the alphabet)
    # streams of tasks
    "TaskStream",
    "LabelledData",
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
    "NetworkCorrector",
    "Trial",
    "Method",
    "Batch",
    "Run",
]
