import pytest

from retarget.errors import InvalidInputError
from retarget.option_values import amount_of_memory, auto_or_number


def test_numbers_or_auto():
    assert auto_or_number("--lr", " Auto ") == "auto"
    assert auto_or_number("--lr", "1e-3") == 0.001


@pytest.mark.parametrize("text", ["", "fast", "0", "-1", "nan", "inf"])
def test_other_words(text):
    with pytest.raises(
        InvalidInputError, match=f"--lr is '{text}'; expected auto or a number above"
    ):
        auto_or_number("--lr", text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GB", 4 * 10**9), ("4 gib", 4 << 30), ("500M", 5 * 10**8), ("1.5kB", 1500), ("77", 77)],
)
def test_amounts(text, size):
    assert amount_of_memory(text) == size


@pytest.mark.parametrize("text", ["", "much", "-4GB", "4XB", "0GB", "GB"])
def test_what_is_no_amount(text):
    with pytest.raises(
        InvalidInputError, match=f"--memory is '{text}'; expected an amount such as"
    ):
        amount_of_memory(text)
