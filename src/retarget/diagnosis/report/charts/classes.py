"""The confusion matrix: which class was predicted for which."""

import numpy as np
import plotly.graph_objects as go

from retarget.diagnosis.answers import ModelScore, Question, Score
from retarget.diagnosis.measure.compare import MOST_CONFUSED
from retarget.diagnosis.report.charts import Chart, NotDrawn, figure
from retarget.diagnosis.result import Diagnosis
from retarget.diagnosis.words.names import QUESTIONS, chart_text, name
from retarget.diagnosis.words.numbers import percent

NUMBERED = 12  # with at most so many classes, each square shows its number


def class_question(diagnosis: Diagnosis) -> Question:
    """Returns the rows on which recall by class is shown: those of the whole stream, if asked."""
    model = diagnosis.model
    asked = tuple(one.question for one in diagnosis.answers) if model is None else model.questions
    return "whole" if "whole" in asked else asked[0]


def class_scores(diagnosis: Diagnosis) -> tuple[Score | ModelScore | None, Score | ModelScore]:
    """Returns the scores whose recall by class is shown: of the batch model and the online one.

    If the user's model was run, they are those of its batch training and as it came.
    """
    question = class_question(diagnosis)
    model = diagnosis.model
    if model is None:
        return diagnosis.score("offline", question), diagnosis.score("online", question)
    as_it_came = next(
        one for one in model.scores if one.way == "as it came" and one.question == question
    )
    return model.score("batch", question), as_it_came


def confusion_chart(diagnosis: Diagnosis) -> Chart | NotDrawn:
    """Draws for each class which classes were predicted for its rows, as a heat map."""
    stream = diagnosis.stream
    if stream.kind == "regression":
        return NotDrawn("The targets are numbers: there are no classes to be mistaken.")
    if len(stream.target_names) > MOST_CONFUSED:
        return NotDrawn(
            f"There are {len(stream.target_names):,} classes; which was taken for which is drawn "
            f"for at most {MOST_CONFUSED}."
        )
    _, as_it_came = class_scores(diagnosis)
    counts = np.array(as_it_came.confusion)
    if not counts.size:
        return NotDrawn("Not drawn: the predictions are not finite numbers.")
    names = stream.target_names
    total = counts.sum(axis=1, keepdims=True)
    shares = np.where(total > 0, counts / np.maximum(total, 1), np.nan)
    numbered = len(names) <= NUMBERED
    full = [chart_text(text, 60) for text in names]
    squares = go.Heatmap(
        z=shares,
        zmin=0,
        zmax=1,
        xgap=1,
        ygap=1,
        hoverongaps=False,
        hovertext=[
            [
                f"{percent(float(share))} of {truth}<br>taken for {taken}"
                for taken, share in zip(full, row, strict=True)
            ]
            for truth, row in zip(full, shares, strict=True)
        ],
        hoverinfo="text",
        texttemplate="%{z:.0%}" if numbered else None,
        showscale=not numbered,
        colorbar={"tickformat": ".0%"},
    )
    axis = {
        "tickvals": list(range(len(names))),
        "ticktext": [chart_text(text, 14) for text in names],
        "showgrid": False,
        "zeroline": False,
    }
    who = "the online model" if diagnosis.model is None else name(diagnosis.model.name)
    where = QUESTIONS[class_question(diagnosis)]
    return Chart(
        title="Which class was taken for which?",
        caption=f"Each line of squares is a class, and shows what {who} predicted for its rows "
        f"(on {where}); the squares of a line add up to 100%. On the diagonal, the class is right.",
        alternative=f"What {who} predicted for the rows of each of {len(names)} classes, on "
        f"{where}. {_mistakes(names, shares)}",
        figure=figure(
            [squares],
            150 + (34 if numbered else 20) * len(names),
            axis | {"title": "predicted class"},
            axis | {"title": "true class", "autorange": "reversed"},
        ),
    )


def _mistakes(names: tuple[str, ...], shares: np.ndarray) -> str:
    """Names the three most frequent mistakes."""
    wrong = np.nan_to_num(shares)
    np.fill_diagonal(wrong, 0.0)
    most = np.argsort(-wrong, axis=None, kind="stable")[:3]
    places = [divmod(int(place), len(names)) for place in most]
    mistakes = [
        f"{percent(float(wrong[truth, taken]))} of {name(names[truth])} are taken for "
        f"{name(names[taken])}"
        for truth, taken in places
        if wrong[truth, taken] > 0
    ]
    return f"{'; '.join(mistakes)}." if mistakes else "No class was mistaken."
