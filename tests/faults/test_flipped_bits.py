"""Any single bit of an .npz flipped: an error, or every column with what it held."""

import os

import numpy as np
import pytest

from retarget.diagnosis.tables.frames import read_npz
from retarget.errors import InvalidInputError

pytestmark = pytest.mark.faults


SMALL = {"x": np.array([[0.5, 1.0], [1.5, -2.0]]), "ß": np.arange(2)}
# Longer than what zipfile reads at once: a part can be read without the checksum of all of it.
LONG = {"x": np.linspace(0.0, 1.0, 1800).reshape(900, 2), "y": np.arange(900)}
# `make test-faults` takes every byte
STEP = 1 if "RETARGET_CORRUPTIONS" in os.environ else 11
ALL, HEADER = slice(None, None, STEP), slice(0, 200, STEP)
FLIPPED = {
    "stored": (np.savez, SMALL, ALL),
    "packed": (np.savez_compressed, SMALL, ALL),
    "the header of a long array": (np.savez, LONG, HEADER),
    "the header of the only array": (np.savez, {"y": LONG["y"]}, HEADER),
}


@pytest.mark.parametrize("case", FLIPPED)
def test_every_flipped_bit_is_an_error_or_harmless(tmp_path, case):
    save, arrays, part = FLIPPED[case]
    path = tmp_path / "t.npz"
    save(path, **arrays)
    content, expected = path.read_bytes(), read_npz(path, list)
    places = range(len(content))[part]
    noticed = 0
    with path.open("rb+", buffering=0) as file:
        for place in places:
            for bit in range(8):
                file.seek(place)
                file.write(bytes([content[place] ^ 1 << bit]))
                try:
                    found = read_npz(path, list)
                except InvalidInputError:
                    noticed += 1
                else:
                    assert found.columns == expected.columns, (place, bit)
                    assert found.equals(expected), (place, bit)
            file.seek(place)
            file.write(content[place : place + 1])
    assert noticed > 4 * len(places)  # the rest is dates, and which version wrote it
