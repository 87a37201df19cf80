import os
import stat
import struct
import tracemalloc
import zipfile
import zlib
from dataclasses import astuple, fields
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from retarget.data import core50
from retarget.data.core50 import decode, load_core50
from retarget.errors import InvalidInputError, MissingDataError, RetargetError
from support.made_core50 import (
    FORMS,
    SOURCES,
    frame_name,
    made_contents,
    made_frames,
    picture,
    write_made_core50,
    zipped,
)

FRAMES = made_frames()
PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
NAME = frame_name(3, 7, 5)


def load_some(source, frames_per_session=3, **options):
    return load_core50(source, frames_per_session, partial=True, **options)


def assert_same(found, expected):
    for field, one, other in zip(fields(found), astuple(found), astuple(expected), strict=True):
        np.testing.assert_array_equal(one, other, err_msg=field.name)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_images_objects_and_sessions(tmp_path, form):
    source = write_made_core50(tmp_path, form, FRAMES)
    before = sorted(tmp_path.rglob("*"))
    loaded = load_some(source, 2)
    expected = [FRAMES[frame_name(1, thing, n)] for thing in (1, 7, 50) for n in (2, 9)]
    np.testing.assert_array_equal(loaded.train_images, np.stack(expected).transpose(0, 3, 1, 2))
    expected = [FRAMES[frame_name(3, thing, n)] for thing in (1, 7, 50) for n in (2, 9)]
    np.testing.assert_array_equal(loaded.test_images, np.stack(expected).transpose(0, 3, 1, 2))
    for objects, categories in (
        (loaded.train_objects, loaded.train_categories),
        (loaded.test_objects, loaded.test_categories),
    ):
        assert objects.tolist() == [0, 0, 6, 6, 49, 49]
        assert categories.tolist() == [0, 0, 1, 1, 9, 9]
    assert loaded.train_sessions.tolist() == [1] * 6
    assert loaded.test_sessions.tolist() == [3] * 6
    for field, array in zip(fields(loaded), astuple(loaded), strict=True):
        assert array.dtype == (np.uint8 if "images" in field.name else np.int64)
        assert array.flags.c_contiguous
        torch.from_numpy(array)  # which warns about arrays that cannot be written to
    assert sorted(tmp_path.rglob("*")) == before


def test_all_forms_of_a_whole_set_give_the_same(tmp_path):
    frames = made_frames(range(1, 12), range(1, 51), (0, 4), size=(2, 3))
    paths = [write_made_core50(tmp_path, form, frames) for form in FORMS]
    folder, archive = (load_core50(path, 2) for path in paths)
    assert_same(folder, archive)
    assert folder.train_images.shape == (8 * 50 * 2, 3, 2, 3)
    assert folder.test_images.shape == (3 * 50 * 2, 3, 2, 3)
    assert sorted(set(folder.test_sessions.tolist())) == [3, 7, 10]
    order = list(zip(folder.train_sessions, folder.train_objects, strict=True))
    assert order == sorted(order)
    one = load_core50(paths[1], 1)
    np.testing.assert_array_equal(one.train_images, folder.train_images[::2])


def test_other_sessions_can_be_the_test(tmp_path):
    source = write_made_core50(tmp_path, "zip", FRAMES)
    loaded = load_some(source, test_sessions=[1])
    assert set(loaded.test_sessions.tolist()) == {1}
    assert set(loaded.train_sessions.tolist()) == {3}
    without = load_some(source, test_sessions=[7])
    assert without.test_images.shape == (0, 3, 4, 6)
    assert without.train_images.shape == (18, 3, 4, 6)


def test_the_forms_are_looked_for_in_order(tmp_path, monkeypatch):
    seeds = {form: made_frames(seed=n) for n, form in enumerate(FORMS)}
    for form, frames in seeds.items():
        write_made_core50(tmp_path, form, frames)
    monkeypatch.setenv("RETARGET_DATA", str(tmp_path))
    for form, frames in seeds.items():
        expected = load_some(write_made_core50(tmp_path / form, form, frames))
        assert_same(load_some(None), expected)
        assert_same(load_some(str(tmp_path)), expected)
        (tmp_path / SOURCES[form]).rename(tmp_path / f"{form}.old")
    expected = (
        f"core50: {tmp_path} is not a file, and none of core50_128x128, core50_128x128.zip "
        "is in it; download http.*core50_128x128.zip to it by hand"
    )
    for source in (None, tmp_path):
        with pytest.raises(MissingDataError, match=expected):
            load_core50(source)
    with pytest.raises(MissingDataError, match="core50: .*/nothing.zip is not a file"):
        load_core50(tmp_path / "nothing.zip")


def test_a_set_that_is_not_whole_is_an_error_unless_that_is_allowed(tmp_path):
    source = write_made_core50(tmp_path, "zip", FRAMES)
    with pytest.raises(InvalidInputError, match=f"{source} is not all of CORe50, it lacks sessi"):
        load_core50(source, 3)
    with pytest.raises(InvalidInputError, match=f"{source} holds 3 frames of session 1, object 1"):
        load_core50(source, partial=True)


@pytest.mark.parametrize("count", [0, -1])
def test_the_number_of_frames_is_positive(count):
    with pytest.raises(InvalidInputError, match=f"frames_per_session is {count}; expected 1 or m"):
        load_core50("anything", count)


@pytest.mark.parametrize("sessions", [(), (0,), (12,), (3, 3), tuple(range(1, 12))])
def test_the_test_sessions_are_some_of_the_sessions(sessions):
    with pytest.raises(InvalidInputError, match=r"test_sessions is \(.*\); expected some of the s"):
        load_core50("anything", test_sessions=sessions)


def test_a_progress_bar_appears_when_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("retarget.progress.PATIENCE", -1.0)
    source = write_made_core50(tmp_path, "zip", FRAMES)
    load_some(source, progress=True)
    assert "CORe50, frames" in capsys.readouterr().err


def rotated(content):
    return content[len(content) // 2 :] + content[: len(content) // 2]


BAD_PICTURES = {
    "empty": (b"", "is damaged, or neither PNG nor JPEG .UnidentifiedImageError"),
    "text": (b"plain text", "is damaged, or neither PNG nor JPEG .UnidentifiedImageError"),
    "cut short": (picture(PIXELS)[:-30], "is damaged, or neither PNG nor JPEG .*[Tt]runcated"),
    "cut short jpeg": (picture(PIXELS, "JPEG")[:-30], "is damaged, or neither PNG nor .*Truncated"),
    "mixed up": (rotated(picture(PIXELS)), "is damaged, or neither PNG nor JPEG"),
    "gif": (picture(PIXELS, "GIF"), "is damaged, or neither PNG nor JPEG"),
    "palette": (picture(PIXELS, mode="P"), "has colours of the kind P; expected RGB, or L for gr"),
    "transparent": (picture(PIXELS, mode="RGBA"), "has colours of the kind RGBA; expected RGB"),
    "print": (picture(PIXELS, "JPEG", "CMYK"), "has colours of the kind CMYK; expected RGB"),
    "other size": (picture(PIXELS[:3]), "has 6 x 3 pixels, others 6 x 4; expected one size"),
    "wide": (
        picture(np.zeros((1, 1025, 3), np.uint8)),
        "has 1025 x 1 pixels; expected at most 1024 x 1024",
    ),
}


@pytest.mark.parametrize("form", ["folder", "zip"])
@pytest.mark.parametrize("case", BAD_PICTURES)
def test_a_bad_picture_is_named(tmp_path, form, case):
    content, message = BAD_PICTURES[case]
    pictures = {name: picture(pixels) for name, pixels in FRAMES.items()} | {NAME: content}
    source = tmp_path / "made"
    if form == "zip":
        source.write_bytes(zipped(pictures))
    else:
        for name, each in pictures.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(each)
    with pytest.raises(InvalidInputError, match=f"{NAME} in {source} {message}"):
        load_some(source)


def with_size(png, width, height):
    """A PNG whose header promises another size, with the right checksum."""
    header = b"IHDR" + struct.pack(">II", width, height) + png[24:29]
    checksum = struct.pack(">I", zipfile.crc32(header))
    return png[:12] + header + checksum + png[33:]


@pytest.mark.parametrize("side", [2000, 10_000, 2**31 - 1])
def test_a_picture_that_promises_to_be_huge_is_not_decoded(side):
    tracemalloc.start()
    with pytest.raises(InvalidInputError, match=f"made (has {side} x {side} pixels|is damaged)"):
        decode(with_size(picture(PIXELS), side, side), "made")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1e6


def test_grey_is_repeated(tmp_path):
    grey = np.array([[0, 100], [200, 255]], np.uint8)
    found = decode(picture(grey), "made")
    np.testing.assert_array_equal(found, np.repeat(grey[:, :, None], 3, axis=2))
    assert decode(picture(PIXELS, "JPEG"), "made").shape == PIXELS.shape


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_a_file_larger_than_any_frame(tmp_path, monkeypatch, form):
    source = write_made_core50(tmp_path, form, FRAMES)
    monkeypatch.setattr(core50, "LARGEST_FILE", 50)
    message = f"{source}.* (has|of) [0-9]+ bytes; expected at most 50"
    with pytest.raises(InvalidInputError, match=message):
        load_some(source)


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    source = write_made_core50(tmp_path, "folder", FRAMES)
    (source / "s2").symlink_to(source / "s1")  # not followed

    def refuse(place):
        if str(place).endswith("o50"):
            raise PermissionError(13, "Permission denied", str(place))
        return scandir(place)

    scandir = os.scandir
    assert load_some(source).train_sessions.max() == 1
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match="o50"):
        load_some(source)


@pytest.mark.parametrize("form", FORMS)
def test_names_that_are_no_frames(tmp_path, form):
    frames = FRAMES | {"s1/o1/C_01_02_000.png": PIXELS}
    source = write_made_core50(tmp_path, form, frames)
    with pytest.raises(InvalidInputError, match=f"{source} holds '.*s1/o1/C_01_02_000.png', which"):
        load_some(source)


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_a_frame_that_is_there_twice(tmp_path, form):
    frames = FRAMES | {NAME.replace("png", "jpg"): PIXELS}
    source = write_made_core50(tmp_path, form, frames)
    with pytest.raises(InvalidInputError, match=f"{source} holds a frame twice: .*is also there"):
        load_some(source)


@pytest.mark.parametrize(
    ("name", "mode", "message"),
    [
        ("../s1/o1/C_01_01_000.png", 0, "which leads out of its folder"),
        ("/s1/o1/C_01_01_000.png", 0, "which leads out of its folder"),
        ("s1/o1/C_01_01_000.png", stat.S_IFLNK, "as a link or as something other"),
    ],
)
def test_hostile_archives(tmp_path, name, mode, message):
    entry = zipfile.ZipInfo(name)
    entry.external_attr = mode << 16
    (tmp_path / "made.zip").write_bytes(zipped({entry: b"x"}))
    with pytest.raises(InvalidInputError, match=f"{tmp_path}/made.zip holds .*{message}"):
        load_some(tmp_path / "made.zip")


def test_an_archive_that_is_cut_short(tmp_path):
    source = write_made_core50(tmp_path, "zip", FRAMES)
    source.write_bytes(source.read_bytes()[:-200])
    with pytest.raises(InvalidInputError, match=f"{source} is cut short, damaged, or not a zip"):
        load_some(source)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_only_the_chosen_frames_are_held(tmp_path, compression):
    frames = made_frames((1,), (1,), range(1000), size=(64, 64))
    source = tmp_path / "core50_128x128.zip"
    pictures = {name: picture(pixels) for name, pixels in frames.items()}
    source.write_bytes(zipped(pictures, compression))
    load_some(source)
    size = 64 * 64 * 3
    tracemalloc.start()
    load_some(source, 4)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 4 * size < peak < 1000 * size / 3


@given(
    changes=st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=5),
    cut=st.integers(0, 300) | st.just(0),
)
def test_a_changed_archive_gives_an_error_of_ours_or_the_images(tmp_path_factory, changes, cut):
    frames = made_frames((1, 3), (1, 2), (0, 1))
    folder = tmp_path_factory.getbasetemp() / "changed"
    expected = load_some(write_made_core50(folder / "whole", "folder", frames), 2)
    source = write_made_core50(folder, "zip", frames)
    content = bytearray(made_contents("zip", frames)[source.name])
    for place, value in changes:
        content[place % len(content)] = value
    source.write_bytes(content[: len(content) - cut])
    try:
        loaded = load_some(source, 2)
    except RetargetError:
        return
    assert_same(loaded, expected)


def test_the_categories_have_names():
    assert len(core50.Core50.category_names) == 10


def at_hand(name):
    path = Path(os.environ.get("RETARGET_DATA", "")) / name
    if not path.is_file():
        pytest.skip(f"RETARGET_DATA names no folder with {name}")
    return path


@pytest.mark.slow
def test_real_frames():
    sample = at_hand("core50_sample.zip")
    loaded = load_some(sample, 1)
    images = np.concatenate([loaded.train_images, loaded.test_images])
    assert images.shape == (90, 3, 128, 128)
    assert set(loaded.test_sessions.tolist()) == {3, 7}
    assert len({*loaded.train_objects.tolist(), *loaded.test_objects.tolist()}) == 44
    with zipfile.ZipFile(sample) as archive, archive.open(archive.namelist()[0]) as file:
        name, pixels = file.name, np.asarray(Image.open(file))
    session, thing = (int(part[1:]) for part in name.split("/")[1:3])
    row = (loaded.train_sessions == session) & (loaded.train_objects == thing - 1)
    np.testing.assert_array_equal(loaded.train_images[row][0].transpose(1, 2, 0), pixels)
    with pytest.raises(InvalidInputError, match="lacks sessions 10, 11; objects 5, 18, 19, 39, 40"):
        load_core50(sample, 1)


@pytest.mark.slow
def test_the_stand_in():
    loaded = load_core50(at_hand("core50_standin.zip"))
    assert loaded.train_images.shape == (6000, 3, 64, 64)
    assert loaded.test_images.shape == (2250, 3, 64, 64)
    assert np.bincount(loaded.train_objects).tolist() == [120] * 50
    assert np.bincount(loaded.test_objects).tolist() == [45] * 50
    assert set(loaded.test_sessions.tolist()) == {3, 7, 10}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "core50_128x128.zip")
    with pytest.raises(MissingDataError, match="none of .* is in it"):
        load_some(tmp_path)
    source = write_made_core50(tmp_path / "there", "folder", FRAMES)
    (source / NAME).unlink()
    os.mkfifo(source / NAME)
    with pytest.raises(InvalidInputError, match=f"{NAME} is not a plain file; expected one of"):
        load_some(source)


def test_a_changed_pixel_of_a_png_is_noticed():
    """Pillow decodes it without a word: the checksum of its data must be compared."""
    content = picture(np.zeros((4, 6, 3), np.uint8))
    place = content.index(b"IDAT") + 4
    deflated = struct.unpack(">I", content[place - 8 : place - 4])[0]
    other = zlib.compress(bytes(4 * 19 - 1) + b"\x07", 6)
    assert decode(content, "a file").max() == 0
    changed = content[: place - 8] + struct.pack(">I", len(other)) + b"IDAT" + other
    with pytest.raises(InvalidInputError, match="a file is damaged, or neither PNG nor JPEG"):
        decode(changed + content[place + deflated :], "a file")
