"""The verdict of a diagnosis in words: headline, findings and what to do."""

from retarget.diagnosis.facts import evidence, verdict_kind
from retarget.diagnosis.findings import advised, sentences
from retarget.diagnosis.report.headline import Headline, logged_headline
from retarget.diagnosis.result import Diagnosis, Verdict


def verdict(diagnosis: Diagnosis) -> Verdict:
    """Returns the verdict: about the user's model, if there is one, else the online learner."""
    return Verdict(
        kind=verdict_kind(evidence(diagnosis)),
        headline=logged_headline(diagnosis) or Headline.of(diagnosis).text(),
        findings=tuple(sentences(diagnosis)),
        recommendations=tuple(piece.text for piece in advised(diagnosis)),
    )
