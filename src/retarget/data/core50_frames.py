"""The frames of CORe50: how they are named, which must be there, which are chosen."""

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeVar

from retarget.errors import InvalidInputError

SESSIONS = range(1, 12)
OBJECTS = 50
OBJECTS_A_CATEGORY = 5

SUFFIXES = (".png", ".jpg", ".jpeg")
# sS/oO/C_SS_OO_FFF.png, in no folder or in one.
FRAME_NAME = re.compile(
    r"(?:[\w.-]+/)?s([0-9]{1,2})/o([0-9]{1,2})/C_([0-9]{2})_([0-9]{2})_([0-9]{3,4})\.(?:png|jpe?g)",
    re.ASCII,
)
# Of objects that are missing in single sessions, how many a message names.
SHOWN = 8

Place = TypeVar("Place")


class Frame(NamedTuple):
    """One frame, ordered by session, object and number.

    Attributes:
        session: 1 to 11.
        label: The object, 0 to 49; its folder is o1 to o50.
        number: As in its name.
    """

    session: int
    label: int
    number: int


def parse_name(name: str, source: str) -> Frame | None:
    """The frame of that name; None for what is no picture, or hidden.

    Raises:
        InvalidInputError: It is a picture, but no frame of CORe50.

    Example:
        >>> parse_name("core50_128x128/s3/o21/C_03_21_007.png", "a file")
        Frame(session=3, label=20, number=7)
        >>> parse_name("core50_128x128/readme.txt", "a file")
    """
    last = name.rpartition("/")[2]
    if last.startswith(".") or not last.lower().endswith(SUFFIXES):
        return None
    found = FRAME_NAME.fullmatch(name)
    if found:
        session, thing, also_session, also_thing, number = map(int, found.groups())
        agree = (session, thing) == (also_session, also_thing)
        if agree and session in SESSIONS and 1 <= thing <= OBJECTS:
            return Frame(session, thing - 1, number)
    raise InvalidInputError(
        f"{source} holds {name!r}, which is no frame of CORe50; expected names such as "
        "s3/o21/C_03_21_007.png, with sessions 1 to 11 and objects 1 to 50"
    )


def index(entries: Iterable[tuple[str, Place]], source: str) -> dict[Frame, Place]:
    """Where each frame is, from the names of files and where they are."""
    found: dict[Frame, Place] = {}
    for name, place in entries:
        frame = parse_name(name, source)
        if frame is None:
            continue
        if frame in found:
            raise InvalidInputError(
                f"{source} holds a frame twice: {name} is also there in another folder or format; "
                "remove one of them"
            )
        found[frame] = place
    return found


def choose(frames: Iterable[Frame], wanted: int, source: str, *, partial: bool) -> list[Frame]:
    """`wanted` frames of each session and object, spread evenly, in order.

    Raises:
        InvalidInputError: There are none, or too few of a session and object; or a session or
            object is missing, unless `partial` allows it.
    """
    groups: dict[tuple[int, int], list[Frame]] = {}
    for frame in sorted(frames):
        groups.setdefault((frame.session, frame.label), []).append(frame)
    if not groups:
        raise InvalidInputError(
            f"{source} holds no frames of CORe50; expected names such as s3/o21/C_03_21_007.png"
        )
    if not partial:
        _require_complete(groups.keys(), source)
    for (session, label), group in groups.items():
        if len(group) < wanted:
            raise InvalidInputError(
                f"{source} holds {len(group)} frames of session {session}, object {label + 1}; "
                f"frames_per_session is {wanted}: expected at least as many frames"
            )
    return [group[place] for group in groups.values() for place in spread(len(group), wanted)]


def _require_complete(present: Collection[tuple[int, int]], source: str) -> None:
    sessions, labels = ({group[i] for group in present} for i in (0, 1))
    no_session = [str(session) for session in SESSIONS if session not in sessions]
    no_object = [str(label + 1) for label in range(OBJECTS) if label not in labels]
    single = [
        f"object {label + 1} in session {session}"
        for session in sorted(sessions)
        for label in sorted(labels)
        if (session, label) not in present
    ]
    if len(single) > SHOWN:
        single[SHOWN:] = [f"{len(single) - SHOWN} more such"]
    missing = [
        *([f"sessions {', '.join(no_session)}"] if no_session else []),
        *([f"objects {', '.join(no_object)}"] if no_object else []),
        *([", ".join(single)] if single else []),
    ]
    if missing:
        raise InvalidInputError(
            f"{source} is not all of CORe50, it lacks {'; '.join(missing)}; "
            "get the rest, or load what there is with partial=True"
        )


def spread(count: int, wanted: int) -> list[int]:
    """`wanted` of the places 0 to count - 1, evenly from the first to the last.

    The i-th is i (count - 1) / (wanted - 1), rounded down; a single one is the first.

    Example:
        >>> spread(300, 4)
        [0, 99, 199, 299]
    """
    if wanted == 1:
        return [0]
    return [i * (count - 1) // (wanted - 1) for i in range(wanted)]
