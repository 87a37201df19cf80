"""Banking77 and CLINC150: the official files, and damaged ones."""

import gzip
import json

import pytest

from retarget.errors import InvalidInputError, MissingDataError
from retarget.lab.data import fetch
from retarget.lab.data.banking77 import load_banking77
from retarget.lab.data.clinc150 import load_clinc150
from support.made_sentences import write_sentences


def test_sentences_are_read_with_their_intents(tmp_path):
    write_sentences(tmp_path, intents=3, per_intent=4)
    train, test = load_banking77(tmp_path)
    assert len(train.texts) == len(train.intents) == 12
    assert len(set(train.intents)) == 3
    assert set(test.intents) == set(train.intents)
    assert "a, comma" in train.texts[0]
    requests = load_clinc150(tmp_path)
    assert len(requests.train.texts) == 12
    assert set(requests.out_of_scope.intents) == {"oos"}


def test_clinc_may_be_packed(tmp_path):
    write_sentences(tmp_path, intents=2, per_intent=2)
    path = tmp_path / "clinc150_full.json"
    plain = load_clinc150(tmp_path)
    (tmp_path / "clinc150_full.json.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert load_clinc150(tmp_path) == plain


def test_missing_files_are_named_with_the_command(tmp_path):
    with pytest.raises(MissingDataError, match="banking77_test.csv not found"):
        load_banking77(tmp_path)
    with pytest.raises(MissingDataError, match="retarget data get clinc150"):
        load_clinc150(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text,label\na,b\n",
        b"text,category\n",
        b"text,category\na,b,c\n",
        b"\xff\xfe",
        b'a,"b\n',
    ],
)
def test_a_damaged_table_is_refused(tmp_path, content):
    write_sentences(tmp_path, intents=2, per_intent=2)
    (tmp_path / "banking77_test.csv").write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"banking77_test.csv is damaged"):
        load_banking77(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", json.dumps({"train": [["a", 1]]}).encode(), b'{"train": [["a"]]}', b"\xff"],
)
def test_a_damaged_json_is_refused(tmp_path, content):
    (tmp_path / "clinc150_full.json").write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"clinc150_full.json is damaged"):
        load_clinc150(tmp_path)


def test_cut_and_large_packed_files(tmp_path, monkeypatch):
    write_sentences(tmp_path, intents=2, per_intent=2)
    path = tmp_path / "clinc150_full.json"
    packed = gzip.compress(path.read_bytes())
    path.unlink()
    (tmp_path / "clinc150_full.json.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InvalidInputError, match="damaged"):
        load_clinc150(tmp_path)
    (tmp_path / "clinc150_full.json.gz").write_bytes(packed)
    monkeypatch.setattr("retarget.lab.data.clinc150.LARGEST", 10)
    with pytest.raises(InvalidInputError, match="more than 10 bytes"):
        load_clinc150(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["banking77", "clinc150"])
def test_the_official_files(name):
    """Those that RETARGET_DATA points to."""
    data_set = fetch.find_data_set(name)
    folder = fetch.data_folder()
    if not all(file.present(folder) for file in data_set.files):
        pytest.skip(f"{name} is not in {folder}")
    assert [fetch.check_file(file, folder)[0] for file in data_set.files] == ["ok"] * len(
        data_set.files
    )
    if name == "banking77":
        train, test = load_banking77(folder)
        assert (len(train.texts), len(test.texts), len(set(train.intents))) == (10_003, 3_080, 77)
    else:
        requests = load_clinc150(folder)
        sizes = [len(getattr(requests, part).texts) for part in ("train", "validation", "test")]
        assert [*sizes, len(requests.out_of_scope.texts)] == [15_000, 3_000, 4_500, 1_000]
        assert len(set(requests.train.intents)) == 150
