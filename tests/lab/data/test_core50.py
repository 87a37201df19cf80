import os
import struct
import zipfile
import zlib
from dataclasses import astuple, fields
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from retarget.errors import InvalidInputError, MissingDataError
from retarget.lab.data import core50
from retarget.lab.data.core50 import Frame, choose, decode, index, load_core50, new_classes_tasks
from support.made_core50 import FORMS, frame_name, made_frames, picture, write_made_core50, zipped
from support.peak_memory import at_most

FRAMES = made_frames()
PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
NAME = frame_name(3, 7, 5)


def load_some(source, frames_per_session=3, **options):
    return load_core50(source, frames_per_session, partial=True, **options)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_images_objects_and_sessions(tmp_path, form):
    source = write_made_core50(tmp_path, form, FRAMES)
    before = sorted(tmp_path.rglob("*"))
    loaded = load_some(source, 2)
    for part, session in (("train", 1), ("test", 3)):
        expected = [FRAMES[frame_name(session, thing, n)] for thing in (1, 7, 50) for n in (2, 9)]
        images, objects, sessions = (
            getattr(loaded, f"{part}_{name}") for name in ("images", "objects", "sessions")
        )
        np.testing.assert_array_equal(images, np.stack(expected).transpose(0, 3, 1, 2))
        assert objects.tolist() == [0, 0, 6, 6, 49, 49]
        assert sessions.tolist() == [session] * 6
    for field, array in zip(fields(loaded), astuple(loaded), strict=True):
        assert array.dtype == (np.uint8 if "images" in field.name else np.int64)
        assert array.flags.c_contiguous
        torch.from_numpy(array)  # which warns about arrays that cannot be written to
    assert sorted(tmp_path.rglob("*")) == before


def test_a_whole_set(tmp_path):
    frames = made_frames(range(1, 12), range(1, 51), (0, 4), size=(2, 3))
    source = write_made_core50(tmp_path, "zip", frames)
    whole, one = load_core50(source, 2), load_core50(source, 1, test_sessions=[1])
    assert whole.train_images.shape == (8 * 50 * 2, 3, 2, 3)
    assert whole.test_images.shape == (3 * 50 * 2, 3, 2, 3)
    assert sorted(set(whole.test_sessions.tolist())) == [3, 7, 10]
    order = list(zip(whole.train_sessions, whole.train_objects, strict=True))
    assert order == sorted(order)
    np.testing.assert_array_equal(one.train_images[-50:], whole.train_images[-100::2])
    assert set(one.test_sessions.tolist()) == {1}


def test_the_forms_are_looked_for_in_order(tmp_path, monkeypatch):
    frames = {form: made_frames(seed=n) for n, form in enumerate(FORMS)}
    written = {form: write_made_core50(tmp_path, form, frames[form]) for form in FORMS}
    monkeypatch.setenv("RETARGET_DATA", str(tmp_path))
    for form, path in written.items():
        expected = frames[form][frame_name(1, 1, 2)].transpose(2, 0, 1)
        for source in (None, str(tmp_path)):
            np.testing.assert_array_equal(load_some(source).train_images[0], expected)
        path.rename(tmp_path / f"{form}.old")
    expected = (
        f"core50: {tmp_path} is not a file, and does not contain any of core50_128x128, "
        "core50_128x128.zip; download http.*core50_128x128.zip to it by hand"
    )
    for source in (None, tmp_path):
        with pytest.raises(MissingDataError, match=expected):
            load_core50(source)
    with pytest.raises(MissingDataError, match="core50: .*/nothing.zip is not a file"):
        load_core50(tmp_path / "nothing.zip")


def with_size(png, width, height):
    """A PNG whose header promises another size, with the right checksum."""
    header = b"IHDR" + struct.pack(">II", width, height) + png[24:29]
    checksum = struct.pack(">I", zipfile.crc32(header))
    return png[:12] + header + checksum + png[33:]


DAMAGED = "is damaged, or neither PNG nor JPEG"
PNG = picture(PIXELS)
BAD_PICTURES = {
    "text": (b"plain text", f"{DAMAGED} .UnidentifiedImageError"),
    "cut short": (PNG[:-30], f"{DAMAGED} .*[Tt]runcated"),
    "gif": (picture(PIXELS, "GIF"), DAMAGED),
    "palette": (picture(PIXELS, mode="P"), "pixels of the kind P; expected .*RGB"),
    "other size": (picture(PIXELS[:3]), "has 6 x 3 pixels, others 6 x 4; expected the same"),
    "wide": (picture(np.zeros((1, 1025, 3), np.uint8)), "has 1025 x 1 pixels.* at most 1024 x 1"),
    "huge": (with_size(PNG, 2**15, 2**15), "has 32768 x 32768 pixels|is damaged"),
    "more than huge": (with_size(PNG, 2**31 - 1, 2**31 - 1), "pixels|is damaged"),
}


@pytest.mark.parametrize("case", BAD_PICTURES)
def test_a_bad_picture_is_named(tmp_path, case):
    content, message = BAD_PICTURES[case]
    pictures = {name: picture(pixels) for name, pixels in FRAMES.items()} | {NAME: content}
    (tmp_path / "made").write_bytes(zipped(pictures))
    refused = pytest.raises(InvalidInputError, match=f"{NAME} in {tmp_path}/made .*{message}")
    with at_most(3e6), refused:
        load_some(tmp_path / "made")


def test_options_that_make_no_sense():
    with pytest.raises(InvalidInputError, match="^frames_per_session is 0; expected"):
        load_core50("anything", 0)
    for sessions in ((), (0,), (12,), (3, 3), range(1, 12)):
        with pytest.raises(InvalidInputError, match="^test_sessions is .*; expected"):
            load_core50("anything", test_sessions=sessions)


def test_the_pixels_of_a_picture():
    grey = np.array([[0, 100], [200, 255]], np.uint8)
    found = decode(picture(grey), "made")
    np.testing.assert_array_equal(found, np.repeat(grey[:, :, None], 3, axis=2))
    assert decode(picture(PIXELS, "JPEG"), "made").shape == PIXELS.shape
    # Pillow decodes a PNG with other data without a word: their checksum must be compared
    content = picture(np.zeros((4, 6, 3), np.uint8))
    place = content.index(b"IDAT") + 4
    deflated = struct.unpack(">I", content[place - 8 : place - 4])[0]
    other = zlib.compress(bytes(4 * 19 - 1) + b"\x07", 6)
    changed = content[: place - 8] + struct.pack(">I", len(other)) + b"IDAT" + other
    with pytest.raises(InvalidInputError, match="damaged, or neither PNG nor JPEG"):
        decode(changed + content[place + deflated :], "a file")


def test_folders_and_files_that_cannot_be_read(tmp_path, monkeypatch):
    source = write_made_core50(tmp_path / "there", "folder", FRAMES)
    (source / "s2").symlink_to(source / "s1")  # not followed
    assert load_some(source).train_sessions.max() == 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", Mock(side_effect=PermissionError(13, "denied", "o50")))
        with pytest.raises(PermissionError, match="o50"):
            load_some(source)
    # a pipe is not waited for
    os.mkfifo(tmp_path / "core50_128x128.zip")
    with pytest.raises(MissingDataError, match="does not contain any of"):
        load_some(tmp_path)
    (source / NAME).unlink()
    os.mkfifo(source / NAME)
    with pytest.raises(InvalidInputError, match=f"{NAME} is not a regular file"):
        load_some(source)
    monkeypatch.setattr(core50, "LARGEST_FILE", 50)
    for each in (source, write_made_core50(tmp_path / "zipped", "zip", FRAMES)):
        with pytest.raises(InvalidInputError, match=f"{each}.* (more than|expected at most) 50"):
            load_some(each)


def test_only_the_chosen_frames_are_held(tmp_path):
    frames = made_frames((1,), (1,), range(300), size=(64, 64))
    source = write_made_core50(tmp_path, "zip", frames)
    load_some(source)
    with at_most(300 * 64 * 64 * 3 / 3):
        load_some(source, 4)


@pytest.mark.slow
def test_real_frames():
    sample = Path(os.environ.get("RETARGET_DATA", "")) / "core50_sample.zip"
    if not sample.is_file():
        pytest.skip("RETARGET_DATA names no folder with core50_sample.zip")
    loaded = load_some(sample, 1)
    assert len(loaded.train_images) + len(loaded.test_images) == 90
    assert set(loaded.test_sessions.tolist()) == {3, 7}
    with zipfile.ZipFile(sample) as archive, archive.open(archive.namelist()[0]) as file:
        name, pixels = file.name, np.asarray(Image.open(file))
    session, thing = (int(part[1:]) for part in name.split("/")[1:3])
    row = (loaded.train_sessions == session) & (loaded.train_objects == thing - 1)
    np.testing.assert_array_equal(loaded.train_images[row][0].transpose(1, 2, 0), pixels)
    with pytest.raises(InvalidInputError, match="lacks 460 of 550 pairs"):
        load_core50(sample, 1)


# Which frames, and which tasks


@given(st.integers(1, 11), st.integers(1, 50), st.integers(0, 9999))
def test_a_name_is_a_frame(session, thing, number):
    expected = Frame(session, thing - 1, number)
    for suffix in ("png", "jpg", "jpeg"):
        name = frame_name(session, thing, number, suffix)
        assert core50.parse_name(name, "made") == expected
        assert core50.parse_name(f"core50_128x128/{name}", "made") == expected


def test_the_file_of_each_frame():
    one, other = "s2/o1/C_02_01_004.png", "s1/o50/C_01_50_000.jpg"
    passed_over = ["readme.txt", "s1/o1/Thumbs.db", "s1/o1/._C_01_01_000.png", ".png"]
    found = {Frame(2, 0, 4): one, Frame(1, 49, 0): other}
    assert index([one, *passed_over, other], "made") == found
    for twice in ("s2/o1/C_02_01_004.jpg", "more/s2/o1/C_02_01_004.png"):
        with pytest.raises(InvalidInputError, match=f"made holds a frame twice: {twice} also"):
            index([one, twice], "made")
    for none in (
        "C_01_01_000.png",
        "a/b/s1/o1/C_01_01_000.png",
        "s1/o1/D_01_01_000.png",
        "s1/o1/C_01_02_000.png",
        "s12/o1/C_12_01_000.png",
        "s1/o51/C_01_51_000.png",
        "s1/o1/C_01_01_00.png",
        "s1/o1/C_01_01_000.PNG",
        "s1/o1/C_01_01_000.png/x.png",
        "s1/o1/C_01_01_00٣.png",
    ):
        with pytest.raises(InvalidInputError, match=f"made holds '{none}', which is not a frame"):
            index([none], "made")


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))))
def test_frames_are_spread_evenly_from_first_to_last(sizes):
    count, wanted = sizes
    places = core50.spread(count, wanted)
    assert len(places) == wanted
    assert places[0] == 0
    if wanted > 1:
        assert places[-1] == count - 1
        steps = {after - before for before, after in pairwise(places)}
        assert min(steps) >= 1
        assert max(steps) - min(steps) <= 1


def every_group(numbers=(0,)):
    return {Frame(s, label, n) for s in range(1, 12) for label in range(50) for n in numbers}


def test_frames_of_sessions_and_objects():
    frames = sorted(every_group((3, 10, 11, 200, 1000)), key=hash)
    assert choose(frames, 3, "made", partial=False) == sorted(every_group((3, 11, 1000)))
    whole = every_group((1, 2))
    some = {frame for frame in whole if frame.session != 5 and frame[:2] != (4, 8)}
    with pytest.raises(
        InvalidInputError, match="lacks 51 of 550 .*, 's4/o9', 's5/o1', .* and 43 more;"
    ):
        choose(some, 2, "made", partial=False)
    assert choose(some, 2, "made", partial=True) == sorted(some)
    with pytest.raises(InvalidInputError, match="1 frames of session 6, object 30"):
        choose(whole - {Frame(6, 29, 2)}, 2, "made", partial=False)
    with pytest.raises(InvalidInputError, match="made holds no frames of CORe50"):
        choose([], 1, "made", partial=True)


def test_the_tasks_of_new_classes():
    found = [new_classes_tasks(seed) for seed in range(200)]
    for seed, (first, *others) in enumerate(found):
        assert [label // 5 for label in first] == list(range(10))
        assert [len(task) for task in others] == [5] * 8
        labels = [label for task in (first, *others) for label in task]
        assert sorted(labels) == list(range(50))
        assert {type(label) for label in labels} == {int}
        assert [first, *others] == new_classes_tasks(seed)
    assert len({str(tasks) for tasks in found}) == 200
    for task in (0, 8):  # every object is in each
        assert {label for tasks in found for label in tasks[task]} == set(range(50))
