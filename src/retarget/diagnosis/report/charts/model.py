"""Charts of the user's own model: its errors, its shift, and what the theory says of it."""

from dataclasses import replace

import numpy as np

from retarget.diagnosis.report.charts import DOTS, INK, Chart, layout, line, scatter
from retarget.diagnosis.report.charts.groups import size_chart
from retarget.diagnosis.report.charts.learners import Labelled, estimates_chart
from retarget.diagnosis.report.charts.rows import (
    FAINT,
    POINTS,
    along_the_stream,
    drawn_rows,
    file_row,
    group_of_row,
    most_shifted,
    shift_unit,
)
from retarget.diagnosis.report.words import chart_text
from retarget.diagnosis.result import Diagnosis, ModelDiagnosis
from retarget.learners import COLOURS

# The colours of the learners that do the same.
WAYS = {
    "as it came": "online",
    "random order": "one step",
    "batch": "offline",
    "corrected": "corrected",
}


def model_charts(diagnosis: Diagnosis, model: ModelDiagnosis) -> dict[str, Chart | None]:
    """The charts of the section about the model."""
    groups = replace(diagnosis, groups=model.groups)
    return {
        "model-shift": _shift(diagnosis, model),
        "model-errors": _errors(model),
        "model-theory": None if model.theory is None else _theory(diagnosis, model, model.theory),
        "model-groups": size_chart(groups, "model-groups", "Which group moved which"),
    }


def _shift(diagnosis: Diagnosis, model: ModelDiagnosis) -> Chart | None:
    theory = None if model.theory is None else np.linalg.norm(model.theory, axis=1)
    return along_the_stream(
        diagnosis,
        np.linalg.norm(model.shift, axis=1),
        key="model-shift",
        title="Shift of your model along the stream",
        meaning="The shift is what the model says of a row at the end, minus what it said right "
        "after learning it. Dots high on the left are early rows that it has forgotten.",
        theory=theory,
    )


def _errors(model: ModelDiagnosis) -> Chart | None:
    runs = len(model.orders)
    return estimates_chart(
        "model-errors",
        "Error by the way of training",
        [Labelled(s.way.capitalize(), COLOURS[WAYS[s.way]], s.error) for s in model.scores],
        "The large dot is the score, the line the range in which it lies with 95% confidence; "
        "farther left is better."
        + f" Each small dot is one of {runs} random orders: how far they lie apart is luck."
        * (runs > 0),
        dots=("Random order", np.array(model.orders)) if runs else None,
    )


def _theory(diagnosis: Diagnosis, model: ModelDiagnosis, theory: np.ndarray) -> Chart | None:
    """The movement that the theory predicts, against the real one; every target is a dot."""
    stream, outputs = diagnosis.stream, model.shift.shape[1]
    most = most_shifted(np.linalg.norm(model.shift, axis=1))
    rows = drawn_rows(group_of_row(diagnosis), most, max(POINTS // outputs, 1))
    x, y = theory[rows].ravel(), model.shift[rows].ravel()
    both = np.isfinite(x) & np.isfinite(y)
    if not both.any():
        return None
    names = [chart_text(target) for target in stream.target_names]
    texts = [f"row {file_row(stream, row)}, {target}" for row in rows for target in names]
    ends = np.array([min(x[both].min(), y[both].min()), max(x[both].max(), y[both].max())])
    unit = shift_unit(diagnosis)
    dots = scatter(
        "markers",
        "targets",
        x[both],
        y[both],
        "%{customdata}<br>predicted %{x:.3g}<br>real %{y:.3g}",
        digits=4,
        customdata=[text for text, finite in zip(texts, both, strict=True) if finite],
        marker={"size": 5, "color": DOTS, "opacity": FAINT},
    )
    exact = line("as predicted", ends, ends, "", INK, width=1.5, dash="dash")
    return Chart(
        key="model-theory",
        title="The shift that the theory predicts, and the real one",
        caption=f"Each dot is a {'target of a ' * (outputs > 1)}row: across, the movement that the "
        "theory predicts; up, the real one. On the dashed line, the theory is right.",
        alternative=f"Real against predicted movement of {both.sum():,} targets; their correlation "
        f"is {np.corrcoef(x[both], y[both])[0, 1] if both.sum() > 1 else np.nan:.2f}.",
        traces=[dots, exact | {"hoverinfo": "skip"}],
        layout=layout(
            320, {"title": f"predicted ({unit})", "nticks": 6}, {"title": "real", "nticks": 6}
        ),
    )
