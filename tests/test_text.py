import pytest

from retarget.errors import InvalidInputError
from retarget.text import amount_of_memory, auto_or_number


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        # beside the examples in the docstrings
        (auto_or_number, " Auto ", "auto"),
        (auto_or_number, "1e-3", 0.001),
        (amount_of_memory, "1.5kB", 1500),
        (amount_of_memory, "77", 77),
        (amount_of_memory, "4 gib", 4 << 30),
    ],
)
def test_what_users_write(read, text, value):
    assert read("--option", text) == value


@pytest.mark.parametrize(
    ("read", "texts"),
    [
        (auto_or_number, ["", "fast", "nan", "inf"]),
        (amount_of_memory, ["", "much", "-4GB", "4XB", "0GB", "GB"]),
    ],
)
def test_what_has_no_meaning(read, texts):
    for text in texts:
        with pytest.raises(InvalidInputError, match=f"--option is '{text}'; expected a"):
            read("--option", text)
