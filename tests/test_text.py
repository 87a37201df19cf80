import pytest

from retarget.errors import InvalidInputError
from retarget.text import amount_of_memory, amount_of_time, auto_or_number


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
    assert amount_of_memory("--memory", text) == size


@pytest.mark.parametrize("text", ["", "much", "-4GB", "4XB", "0GB", "GB"])
def test_what_is_no_amount(text):
    with pytest.raises(
        InvalidInputError, match=f"--memory is '{text}'; expected an amount such as"
    ):
        amount_of_memory("--memory", text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5 MIN", 90), ("2h", 7200), (" 0.5 s ", 0.5)]
)
def test_times(text, seconds):
    assert amount_of_time("--time-limit", text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-4s", "4d", "0s", "min"])
def test_what_is_no_time(text):
    with pytest.raises(
        InvalidInputError, match=f"--time-limit is '{text}'; expected a time such as 90s, 10min"
    ):
        amount_of_time("--time-limit", text)
