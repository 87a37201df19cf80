"""The JSON form of a diagnosis, as `--json`, diagnosis.json and `Diagnosis.to_json` write it.

Its types are made from those of the result: numbers may be null, arrays and tables become lists.
docs/diagnosis.schema.json is made from them. `SCHEMA_VERSION` changes if a field goes, or means
something else; new fields may come at any time.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import is_dataclass
from functools import cache, reduce
from operator import or_
from types import GenericAlias, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, create_model

from retarget.diagnosis.facts import Standing
from retarget.diagnosis.findings import kinds
from retarget.diagnosis.findings.kind import Finding
from retarget.diagnosis.metrics import Metric
from retarget.diagnosis.report.scores import WrittenScore
from retarget.diagnosis.result import Diagnosis, ModelDiagnosis, Verdict
from retarget.diagnosis.stream import TargetKind

SCHEMA_VERSION = 1
# Arrays with one row for each row of the stream: they are in the tables, not in the JSON.
PER_ROW: dict[type, set[str]] = {
    Diagnosis: {
        *("stream", "effective", "corrected", "iterative", "prequential", "density", "changed"),
        "all_rows",
    },
    ModelDiagnosis: {"before", "after", "end", "theory", "corrected"},
}
MORE: dict[type, dict[str, Any]] = {
    Diagnosis: {
        "schema_version": Literal[1],
        "rows": int,
        "kind": TargetKind,
        "targets": list[str],
        "features": list[str],
        "group_column": str | None,
        "notes": list[str],
        "standing": dict[str, Standing],
        "prequential_error": float | None,
        "shift": dict[str, float | None],
        "most_distorted": list[dict[str, Any]],
        "score_table": list[WrittenScore],
        "findings": tuple[Finding, ...],
        "verdict": Verdict,
    },
    Finding: {"kind": Literal[tuple(kind.name for kind in kinds())]},
}
WRITTEN: dict[type, Any] = {
    float: float | None,
    Metric: str,
    np.ndarray: list[float | None] | list[list[float | None]],
    pl.DataFrame: list[dict[str, Any]],
}


def json_type(kind: Any) -> Any:
    """Returns the type that values of a type have in the JSON."""
    origin = get_origin(kind)
    parts = get_args(kind)
    if origin is None and kind in WRITTEN:
        return WRITTEN[kind]
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return json_model(kind)
    if origin in (tuple, list, Sequence):
        return GenericAlias(list, json_type(parts[0]))
    if origin is dict:
        return GenericAlias(dict, (str, json_type(parts[1])))
    if origin in (Union, UnionType):  # of a Literal and None, it is the former before Python 3.14
        return reduce(or_, (json_type(one) for one in parts))
    return kind


@cache
def json_model(kind: Any) -> type[BaseModel]:
    """Returns the fields of a data class, or of a named tuple, as they are in the JSON."""
    left_out = PER_ROW.get(kind, set())
    hints = get_type_hints(kind, localns={"pl": pl})  # `answers` does not import polars
    types = {name: of for name, of in hints.items() if name not in left_out}
    more = MORE.get(kind, {})  # in front, and instead of a field
    fields: Any = {name: (json_type(of), ...) for name, of in (more | types | more).items()}
    summary = (kind.__doc__ or "").partition("\n")[0]
    return create_model(
        kind.__name__, __config__=ConfigDict(extra="allow"), __doc__=summary, **fields
    )


DIAGNOSIS_JSON = json_model(Diagnosis)

if __name__ == "__main__":
    sys.stdout.write(json.dumps(DIAGNOSIS_JSON.model_json_schema(), indent=1) + "\n")
