"""Each kind of finding is found, told or silent for a reason, and its advice arrives."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from retarget.diagnosis import findings as package
from retarget.diagnosis.answers import (
    UNKNOWN,
    AlternativeModel,
    Drift,
    Estimate,
    TriedChange,
)
from retarget.diagnosis.facts import evidence, facts, verdict_kind
from retarget.diagnosis.findings import THEMES, advised, findings, kinds, sentences
from retarget.diagnosis.findings.kind import REGISTERED, FindingKind
from retarget.diagnosis.report.export import as_json
from retarget.diagnosis.report.page import report_html
from retarget.diagnosis.report.terminal import as_text, everything
from retarget.diagnosis.report.verdict import verdict
from retarget.diagnosis.result import ChosenValue, Stability
from support import made_diagnosis as made

GAIN, HARM = Estimate(-0.4, -0.5, -0.3), Estimate(0.5, 0.3, 0.7)
TRIED = pl.DataFrame({"value": [0.1, 2.0], "score": [1.0, 2.0]})


def plain(**changes):
    """A diagnosis with nothing unusual, but for some changes."""
    return replace(made.regression(), **changes)


def answers(**changes):
    """The same, with changes of every answer."""
    found = made.regression()
    return replace(found, answers=tuple(replace(one, **changes) for one in found.answers))


def simple(**changes):
    """The same, with changes of the simplest predictor's score."""
    found = made.regression()
    changed = [
        replace(one, baselines=(replace(one.baselines[0], **changes), *one.baselines[1:]))
        for one in found.answers
    ]
    return replace(found, answers=tuple(changed))


def no_batch_model():
    found = made.regression()
    lost = [
        replace(one, scores=(replace(one.scores[0], loss=UNKNOWN), *one.scores[1:]))
        for one in found.answers
    ]
    return replace(found, answers=tuple(lost))


def last_value_wins():
    found = made.regression()
    winners = [
        replace(one, baselines=(*one.baselines[:-1], replace(one.baselines[-1], **WINS)))
        for one in found.answers
    ]
    return replace(found, answers=tuple(winners))


WINS = {"online": HARM, "batch": HARM, "loss": Estimate(0.1, 0.1, 0.1)}


def bad_batch_model():
    """The batch model is worse than the mean, and a linear one is better."""
    found = simple(batch=HARM, online=HARM)
    linear = AlternativeModel("linear", 0.1, "next", effect=GAIN, constant=GAIN)
    return replace(found, alternatives=(linear,))


def nothing_learned():
    found = simple(batch=HARM, online=HARM)
    return replace(found, forgetting=replace(found.forgetting, known=HARM))


def useless_model():
    found = made.model_regression()
    scores = tuple(replace(one, constant=HARM) for one in found.model.scores)
    return replace(found, model=replace(found.model, scores=scores))


def with_features(**changes):
    found = made.large()
    return replace(found, approximation=replace(found.approximation, **changes))


def adding_up():
    found = made.regression()
    return replace(found, stream=replace(found.stream, adding_up=("a", "b")))


def large_model_targets():
    found = made.model_regression()
    return replace(found, model=replace(found.model, corrected_size=1e3))


def chosen(value):
    return ChosenValue(value, True, "smallest error", TRIED)


CASES = {
    "model failure": made.model_that_failed,
    "model closed": made.model_regression,
    "model movement": made.model_regression,
    "model kernel": made.model_regression,
    "model agreement": made.model_regression,
    "model log": made.logged,
    "model diverged": made.model_that_failed,
    "model large targets": large_model_targets,
    "forgetting": made.regression,
    "order cost": made.regression,
    "one-pass cost": made.regression,
    "kernel learners": made.model_regression,
    "failure": lambda: plain(failures=("There is no exact correction: it overflows.",)),
    "unseen classes": lambda: answers(unseen=("e", "f")),
    "no exact score": made.progressive,
    "diverged": made.diverged,
    "no batch model": no_batch_model,
    "adding up": adding_up,
    "useless model": useless_model,
    "baseline wins": last_value_wins,
    "nothing learned": nothing_learned,
    "bad batch model": bad_batch_model,
    "alternative": bad_batch_model,
    "trial": lambda: answers(trials=(TriedChange("order", 4, GAIN),)),
    "correction": made.regression,
    "gap closed": made.regression,
    "batch": made.regression,
    "model trial": made.model_regression,
    "standing": made.regression,
    "drift": lambda: plain(drift=Drift(52, 9, 200, GAIN, onset=81)),
    "hidden": lambda: plain(hindsight=1e9),
    "shift": made.regression,
    "interference": made.regression,
    "rounding": lambda: plain(exactness=0.3),
    "large targets": lambda: plain(iterative=1e4 * made.regression().stream.Y),
    "smoother": lambda: plain(iterative_gamma=chosen(7.0)),
    "ridge": lambda: plain(iterative_ridge=chosen(0.5)),
    "features": made.large,
    "near limit": lambda: plain(
        lr=replace(made.regression().lr, automatic=False), stability=Stability(0.51, 2.0)
    ),
    "few rows": lambda: answers(rows=29),
    "poor features": lambda: with_features(true_kernel=GAIN),
}
# Where the advice of a kind has room, if not in its own case.
ADVISED = {
    "correction": lambda: plain(),
    "standing": lambda: answers(excess=Estimate(0.0, -0.05, 0.05), effect=made_unclear()),
}


def made_unclear():
    return dict.fromkeys(("corrected", "iterative"), Estimate(0.0, -0.1, 0.1))


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.name)
def test_every_kind_is_found_and_told_or_silent(kind):
    diagnosis = CASES[kind.name]()
    found = list(kind.find(diagnosis))
    assert found
    assert {one.kind for one in found} == {kind.name}
    assert set(found) <= set(findings(diagnosis))
    written = [one["kind"] for one in as_json(diagnosis)["findings"]]
    assert written.count(kind.name) == len(found)
    told = list(kind.sentences(found, diagnosis))
    if kind.silent:
        assert not any(told)
        return
    assert all(told)
    assert set(told) <= set(sentences(diagnosis))
    assert set(told) <= set(verdict(diagnosis).findings)
    # silent where there is nothing to find
    if kind.name not in {one.kind for one in findings(made.undefined())}:
        assert not set(told) & set(sentences(made.undefined()))


GIVE_ADVICE = [kind for kind in kinds() if type(kind).advice is not FindingKind.advice]


@pytest.mark.parametrize("kind", GIVE_ADVICE, ids=lambda kind: kind.name)
def test_advice_arrives_where_there_is_room(kind):
    diagnosis = ADVISED.get(kind.name, CASES[kind.name])()
    found = list(kind.find(diagnosis))
    given = list(kind.advice(found, diagnosis))
    assert given
    shown = evidence(diagnosis)
    if kind.has_room(verdict_kind(shown), facts(shown)):
        assert {one.text for one in given} & {one.text for one in advised(diagnosis)}
    else:
        assert not {one.text for one in given} & {one.text for one in advised(diagnosis)}
    assert not kind.has_room("undefined", facts(shown))
    diverged = made.diverged()
    if kind.name != "near limit":
        assert not set(given) & set(advised(diverged))


def test_the_order_of_files_and_classes():
    in_files = [theme.__name__ for theme in THEMES]
    order = [type(kind).__module__ for kind in kinds()]
    assert [name for k, name in enumerate(order) if name not in order[:k]] == in_files
    found = [one.kind for one in findings(made.model_regression())]
    names = [kind.name for kind in kinds()]
    assert found == sorted(found, key=names.index)
    files = {path.stem for path in Path(package.__path__[0]).glob("*.py")}
    assert files - {"__init__", "kind"} == {name.rpartition(".")[2] for name in in_files}


class Worded(made.Made):
    """A made diagnosis whose words are its own."""

    verdict = property(verdict)


@pytest.fixture
def own_kind():
    class Sevens(FindingKind, name="sevens"):
        """Rows whose number holds a seven."""

        def find(self, diagnosis):
            yield self.finding(value=float(np.sum(diagnosis.stream.rows % 10 == 7)))

        def sentence(self, finding, diagnosis):
            return f"There are {finding.value:.0f} rows whose number ends with a seven."

        def advice(self, findings, diagnosis):
            yield self.tip("Beware of sevens.")

    yield
    del REGISTERED["sevens"]


def test_a_new_kind_needs_nothing_but_its_class(own_kind):
    diagnosis = plain()
    assert findings(diagnosis)[-1].kind == "sevens"
    words = verdict(diagnosis)
    (text,) = (text for text in words.findings if "a seven" in text)
    assert words.recommendations[-1] == "Beware of sevens."
    shown = Worded(**vars(diagnosis))
    for page in (report_html(shown), " ".join(as_text(everything(shown)).split())):
        assert text in page
        assert "Beware of sevens." in page


def test_a_kind_without_a_sentence_says_why():
    with pytest.raises(TypeError, match="needs either a sentence"):

        class Silent(FindingKind, name="nothing said"):
            def find(self, diagnosis):
                yield from ()

    with pytest.raises(TypeError, match="needs either a sentence"):

        class Both(FindingKind, name="both"):
            silent = "the headline says it"

            def find(self, diagnosis):
                yield from ()

            def sentence(self, finding, diagnosis):
                return "And so do I."

    with pytest.raises(TypeError, match="findings named 'drift'"):

        class Again(FindingKind, name="drift"):
            silent = "it is there"

            def find(self, diagnosis):
                yield from ()

    assert {"nothing said", "both"}.isdisjoint(REGISTERED)
