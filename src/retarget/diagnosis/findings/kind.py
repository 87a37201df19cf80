"""What a finding is: a value, and the record of its kind, which says everything about it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from retarget.diagnosis.answers import UNKNOWN, Estimate, Question
from retarget.diagnosis.facts import Facts, Standing
from retarget.diagnosis.result import Diagnosis, VerdictKind

NO_ADVICE: tuple[VerdictKind, ...] = ("diverged", "undefined", "nothing learned")
REGISTERED: dict[str, "FindingKind"] = {}  # by name, in the order in which they are defined


@dataclass(frozen=True)
class Finding:
    """Something that a diagnosis found.

    Attributes:
        kind: What it is about.
        question: The rows that it was found on; None if it is about the stream itself.
        value: The number that was found, such as the online learner's loss.
        against: The number it is compared with, such as the batch model's loss.
        effect: Their difference, relative to `against`, with its interval.
        standing: What the interval says: clearly behind or ahead, level within a tenth (or two
            points of accuracy), or not clear.
        subject: What it was found about: a learner, a change, a baseline, a group.
        other: What it is compared with, if that needs a name.
    """

    kind: str
    question: Question | None = None
    value: float = math.nan
    against: float = math.nan
    effect: Estimate = UNKNOWN
    standing: Standing | None = None
    subject: str = ""
    other: str = ""


class Advice(NamedTuple):
    """A piece of advice.

    Attributes:
        kind: What it is about: a finding's kind, or what to do.
        text: What to do.
        gain: If it was tried, the largest gain on any rows, as a negative number.
        helps: Whether it was tried and clearly helped.
    """

    kind: str
    text: str
    gain: float | None = None
    helps: bool = False


class FindingKind(ABC):
    """One kind of finding: how it is found, its sentence, its advice.

    A subclass is the whole record: `class StreamDrifts(FindingKind, name="drift")`. It says how it
    is found (`find`) and the sentence that tells it (`sentence`), or why it is silent (`silent`).
    Advice is optional. Findings are told, and advice is given, in the order in which kinds are
    defined (see `THEMES`).

    Args:
        name: What `Finding.kind` says.

    Attributes:
        silent: Why there is no sentence, such as where else it is told.
    """

    name: ClassVar[str]
    silent: ClassVar[str] = ""

    def __init_subclass__(cls, name: str, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        taken = type(REGISTERED.get(name))
        # a module that is reloaded, as in a notebook, may define its kinds again
        if name in REGISTERED and taken.__qualname__ != cls.__qualname__:
            raise TypeError(f"there is a kind of findings named {name!r}; expected another name")
        own_words = (cls.sentence, cls.sentences)
        speaks = own_words != (FindingKind.sentence, FindingKind.sentences)
        if speaks == bool(cls.silent):
            raise TypeError(
                f"the finding {name!r} needs either a sentence or, in `silent`, why it has none"
            )
        cls.name = name
        REGISTERED[name] = cls()

    @abstractmethod
    def find(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """Yields what was found of this kind."""

    def sentence(self, finding: Finding, diagnosis: Diagnosis) -> str:
        """Returns the finding in a sentence or two."""
        return ""

    def sentences(self, findings: Sequence[Finding], diagnosis: Diagnosis) -> Iterator[str]:
        """Yields the sentences of all findings of this kind."""
        for finding in findings:
            yield self.sentence(finding, diagnosis)

    def advice(self, findings: Sequence[Finding], diagnosis: Diagnosis) -> Iterator[Advice]:
        """Yields what to do about the findings of this kind, of which there is at least one."""
        yield from ()

    def has_room(self, verdict: VerdictKind, known: Facts) -> bool:
        """Whether the advice does not contradict a verdict and its facts."""
        return verdict not in NO_ADVICE

    def finding(self, question: Question | None = None, **values: Any) -> Finding:
        """Returns a finding of this kind."""
        return Finding(self.name, question, **values)

    def tip(self, text: str) -> Advice:
        """Returns a piece of advice about findings of this kind."""
        return Advice(self.name, text)
