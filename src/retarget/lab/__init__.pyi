# The public names, and where each is defined, as in retarget/__init__.pyi.

# streams of tasks
from .streams import TaskStream as TaskStream
from .streams import LabeledData as LabeledData
from .streams import domain_pairs as domain_pairs
from .streams import class_incremental as class_incremental
from .streams import classes_in_tasks as classes_in_tasks
from .streams import shuffled as shuffled

# the loop
from .training import train as train
from .history import History as History
from .history import average_accuracy as average_accuracy
from .history import forgetting as forgetting
from .history import backward_transfer as backward_transfer

# methods
from .methods import Vanilla as Vanilla
from .methods.ewc import EWC as EWC
from .methods.replay import CumulativeReplay as CumulativeReplay
from .methods.replay import ER as ER
from .methods.replay import DER as DER
from .methods import LabelSmoothing as LabelSmoothing
from .methods.corrected import Corrected as Corrected
from .methods.corrected import Led as Led
from .methods.tangent import Tangent as Tangent
from .methods.tangent import LastLayer as LastLayer
from .methods.replay import Joint as Joint

# for your own loop or method
from .methods import Method as Method
from .methods import Batch as Batch
from .training import Run as Run
