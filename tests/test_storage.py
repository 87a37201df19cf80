import pytest

from retarget.storage import atomic_file


def test_a_file_appears_whole(tmp_path):
    path = tmp_path / "new" / "table.txt"
    with atomic_file(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists()
        assert temporary.suffix == ".txt"
    assert path.read_text() == "whole"
    assert [p.name for p in path.parent.iterdir()] == ["table.txt"]


def fail_half_way(path):
    with atomic_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError("disk full")


def test_a_failure_leaves_the_old_file(tmp_path):
    path = tmp_path / "table.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="disk full"):
        fail_half_way(path)
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1
