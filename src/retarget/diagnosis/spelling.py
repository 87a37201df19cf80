"""Options as every message and every piece of advice spells them: `impute="mean" (--impute mean)`.

The first is the argument of `rt.diagnose`, the second the option of `retarget diagnose`.
"""

import json
import shlex
from typing import Any

# What Python has instead of an argument of that name. The type of the targets says their kind.
INSTEAD = {
    ("target", ...): "Y",
    ("predictions", ...): "model['before']",
    ("predictions_after", ...): "model['after']",
    ("kind", "regression"): "Y.astype(float)",
    ("kind", "classification"): "Y.astype(str)",
}
# In Python the reader of the file, the frame or the model does these.
OF_COMMAND = ("column", "drop", "thousands", "group_as_feature", "model_options")
TURNED_OFF = {"standardize": "--as-they-are"}


def spelled(name: str, value: Any = ...) -> str:
    """Returns an option, with a value or without, as Python and the command take it.

    Args:
        name: Its name.
        value: Text, a number, a bool, or a list for an option that is repeated.

    Examples:
        >>> spelled("hold_out")
        'hold_out (--hold-out)'
        >>> spelled("lags", 3)
        'lags=3 (--lags 3)'
        >>> spelled("kind", "regression"), spelled("drop", ["a b", "c"])
        ('Y.astype(float) (--kind regression)', "--drop 'a b' --drop c")
    """
    command = _of_command(name, value)
    if name in OF_COMMAND:
        return command
    return f"{_of_python(name, value)} ({command})"


def _of_python(name: str, value: Any) -> str:
    if not isinstance(value, list) and (name, value) in INSTEAD:
        return INSTEAD[name, value]
    if value is ...:
        return name
    if name == "batch_size":
        return f"learner=rt.SGD(..., batch_size={value}, reduction=...)"
    return f"{name}={json.dumps(value, ensure_ascii=False) if isinstance(value, str) else value}"


def _of_command(name: str, value: Any) -> str:
    option = f"--{name.replace('_', '-')}"
    if value is ... or value is True:
        return option
    if value is False:
        return TURNED_OFF[name]
    values = value if isinstance(value, list) else [value]
    return " ".join(f"{option} {shlex.quote(str(each))}" for each in values)
