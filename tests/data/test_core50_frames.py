from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retarget.data.core50 import Frame, choose, index, new_classes_tasks, parse_name, spread
from retarget.errors import InvalidInputError
from support.made_core50 import frame_name

SEEDS = st.integers(0, 2**32 - 1)


@given(st.integers(1, 11), st.integers(1, 50), st.integers(0, 9999))
def test_a_name_is_a_frame(session, thing, number):
    expected = Frame(session, thing - 1, number)
    for suffix in ("png", "jpg", "jpeg"):
        name = frame_name(session, thing, number, suffix)
        assert parse_name(name, "made") == expected
        assert parse_name(f"core50_128x128/{name}", "made") == expected


@pytest.mark.parametrize(
    "name", ["readme.txt", "s1/o1/Thumbs.db", "s1/o1/._C_01_01_000.png", "objects.tsv", ".png"]
)
def test_what_is_no_picture_is_passed_over(name):
    assert parse_name(name, "made") is None


@pytest.mark.parametrize(
    "name",
    [
        "C_01_01_000.png",
        "s1/C_01_01_000.png",
        "a/b/s1/o1/C_01_01_000.png",
        "s1/o1/D_01_01_000.png",
        "s1/o1/C_02_01_000.png",
        "s1/o1/C_01_02_000.png",
        "s12/o1/C_12_01_000.png",
        "s0/o1/C_00_01_000.png",
        "s1/o51/C_01_51_000.png",
        "s1/o0/C_01_00_000.png",
        "s1/o1/C_1_1_000.png",
        "s1/o1/C_01_01_00.png",
        "s1/o1/C_01_01_000.PNG",
        "s1/o1/C_01_01_000.png/x.png",
        "s1/o1/C_01_01_00٣.png",
        "s1/o1/C_01_01_000 (1).jpg",
    ],
)
def test_pictures_that_are_no_frames(name):
    with pytest.raises(InvalidInputError, match="made holds '.*', which is not a frame of CORe50"):
        parse_name(name, "made")


def test_index_says_where_frames_are():
    one, other = "s2/o1/C_02_01_004.png", "s1/o50/C_01_50_000.jpg"
    assert index([one, "readme.txt", other], "made") == {
        Frame(2, 0, 4): one,
        Frame(1, 49, 0): other,
    }


@pytest.mark.parametrize("other", ["s2/o1/C_02_01_004.jpg", "more/s2/o1/C_02_01_004.png"])
def test_a_frame_that_is_there_twice(other):
    entries = ["s2/o1/C_02_01_004.png", other]
    with pytest.raises(InvalidInputError, match=f"made holds a frame twice: {other} is also th"):
        index(entries, "made")


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))))
def test_frames_are_spread_evenly_from_first_to_last(sizes):
    count, wanted = sizes
    places = spread(count, wanted)
    assert len(places) == wanted
    assert places[0] == 0
    if wanted > 1:
        assert places[-1] == count - 1
        steps = {after - before for before, after in pairwise(places)}
        assert min(steps) >= 1
        assert max(steps) - min(steps) <= 1


def test_fifteen_of_three_hundred_frames():
    expected = [0, 21, 42, 64, 85, 106, 128, 149, 170, 192, 213, 234, 256, 277, 299]
    assert spread(300, 15) == expected
    assert spread(15, 15) == list(range(15))


def every_group(numbers=(0,)):
    return {Frame(s, label, n) for s in range(1, 12) for label in range(50) for n in numbers}


def test_frames_are_chosen_by_their_numbers_in_each_session_of_each_object():
    frames = sorted(every_group((3, 10, 11, 200, 1000)), key=hash)
    chosen = choose(frames, 3, "made", partial=False)
    assert chosen == sorted(every_group((3, 11, 1000)))


@pytest.mark.parametrize(
    ("is_missing", "message"),
    [
        (lambda frame: frame.session in (2, 11), "lacks sessions 2, 11; get the rest"),
        (lambda frame: frame.label in (0, 41), "lacks objects 1, 42; get the rest, or load wh"),
        (lambda frame: frame[:2] == (4, 8), "lacks object 9 in session 4; get the rest"),
        (
            lambda frame: frame.session == 2 or frame.label == 3 or frame[:2] == (1, 0),
            "lacks sessions 2; objects 4; object 1 in session 1; get the rest",
        ),
        (
            lambda frame: frame.session == 5 and frame.label < 10,
            "object 8 in session 5, 2 more such; get the rest",
        ),
    ],
)
def test_missing_sessions_and_objects_are_listed(is_missing, message):
    frames = {frame for frame in every_group() if not is_missing(frame)}
    with pytest.raises(InvalidInputError, match=f"made is not all of CORe50, it .*{message}"):
        choose(frames, 1, "made", partial=False)
    assert choose(frames, 1, "made", partial=True) == sorted(frames)


@pytest.mark.parametrize("partial", [True, False])
def test_too_few_frames(partial):
    frames = every_group((1, 2)) - {Frame(6, 29, 2)}
    message = "made holds 1 frames of session 6, object 30; frames_per_session is 2: expected"
    with pytest.raises(InvalidInputError, match=message):
        choose(frames, 2, "made", partial=partial)


@pytest.mark.parametrize("partial", [True, False])
def test_no_frames(partial):
    with pytest.raises(InvalidInputError, match="made holds no frames of CORe50; expected names"):
        choose([], 1, "made", partial=partial)


@given(SEEDS)
def test_the_tasks_of_new_classes(seed):
    first, *others = tasks = new_classes_tasks(seed)
    assert [label // 5 for label in first] == list(range(10))
    assert [len(task) for task in others] == [5] * 8
    assert sorted(label for task in tasks for label in task) == list(range(50))
    assert all(type(label) is int for task in tasks for label in task)
    assert tasks == new_classes_tasks(seed)


def test_seeds_give_different_tasks_and_every_object_is_in_each():
    found = [new_classes_tasks(seed) for seed in range(200)]
    assert len({str(tasks) for tasks in found}) == 200
    assert {label for tasks in found for label in tasks[0]} == set(range(50))
    assert {label for tasks in found for label in tasks[8]} == set(range(50))
