"""The diagnosis of a stream: what an online learner made of it, and what would have helped."""

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from retarget.arrays import free_memory
from retarget.diagnosis.approximation import measure_approximation
from retarget.diagnosis.choices import choose_block, choose_gamma, choose_kernel, choose_rate, with_rate
from retarget.diagnosis.evaluation import Split, split
from retarget.diagnosis.feature_kernel import FeatureKernel
from retarget.diagnosis.feature_maps import FeatureMap, feature_map
from retarget.diagnosis.full_kernel import FullKernel, exact_memory
from retarget.diagnosis.groups import group_shift, partition, unknown_shift
from retarget.diagnosis.learned import Learned, learn_all
from retarget.diagnosis.measured import Measured, measure
from retarget.diagnosis.result import (
    Approximation,
    Choice,
    Diagnosis,
    Evaluation,
    Mode,
    Stability,
)
from retarget.diagnosis.stability import largest_rate, non_normality
from retarget.diagnosis.stream import Stream
from retarget.diagnosis.stream_kernel import Advance, StreamKernel
from retarget.diagnosis.trials import attempt_changes
from retarget.diagnosis.verdict import Evidence, verdict
from retarget.errors import InvalidInputError, PrecisionWarning, StreamTooLargeError
from retarget.kernels import Kernel
from retarget.learners import SGD, Reduction
from retarget.progress import PatientBar
from retarget.theory.iterative import check_correction

MOST_MEMORY = 4_000_000_000
PASSES = 13  # over the rows, for the progress bar
