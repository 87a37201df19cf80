"""Options of a diagnosis, with those of the learner beside the others; diagnoses of streams."""

from retarget.diagnosis.measure.holdout import split
from retarget.diagnosis.measuring import diagnose_split
from retarget.diagnosis.options import OPEN_RATE, DiagnosisOptions
from retarget.learners import SGD

# Options of the command; in Python the reader of the file, the frame, the type of the targets, the
# learner and the model say these.
ELSEWHERE = {
    *(
        "column",
        "drop",
        "thousands",
        "group_as_feature",
        "kind",
        "predictions",
        "predictions_after",
    ),
    *("batch_size", "momentum", "nesterov", "weight_decay", "reduction", "model_options"),
}


def options_for(lr="auto", reduction="sum", momentum=0.0, nesterov=False, **more):
    """The options; the rate is chosen unless it is given."""
    steps = {name: more.pop(name) for name in ("batch_size", "weight_decay") if name in more}
    automatic = lr == "auto"
    rate = OPEN_RATE if automatic else lr
    learner = SGD(rate, momentum=momentum, nesterov=nesterov, reduction=reduction, **steps)
    return DiagnosisOptions(learner=learner, choose_lr=automatic, **more)


def diagnosed(stream, test=None, **options):
    """The diagnosis of a stream of numbers."""
    asked = options_for(**options)
    return diagnose_split(split(stream, test, asked), asked)
