"""The pickles of CIFAR-10, read without Python's `pickle`: nothing in a file can make anything run.

A pickle is a program for a stack machine whose instructions may import and call anything. Here
`pickletools` lists them, which runs nothing, and only those are followed that make plain values:
numbers, strings, lists, dictionaries, and an array of bytes as CIFAR-10 has it.

Nothing can grow beyond the file: the instructions that use a remembered value are not followed, so
the work and the memory are linear in the file's length.
"""

import pickletools
from typing import Any

import numpy as np

from retarget.errors import InvalidInputError

MOST_INSTRUCTIONS = 1_000_000  # a file of CIFAR-10 has some 50,000
IGNORED = {"PROTO", "FRAME", "BINPUT", "LONG_BINPUT", "MEMOIZE", "STOP"}
VALUES = {"BININT", "BININT1", "BININT2", "BINBYTES", "SHORT_BINBYTES", "BINUNICODE"}
VALUES |= {"SHORT_BINUNICODE"}
STRINGS = {"BINSTRING", "SHORT_BINSTRING"}  # of Python 2: bytes here
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY: dict[str, type] = {"EMPTY_LIST": list, "EMPTY_DICT": dict}
# How many values an instruction takes from the stack; None: all since the last mark.
TAKES = {"APPEND": 1, "APPENDS": None, "SETITEM": 2, "SETITEMS": None, "REDUCE": 1, "BUILD": 1}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "TUPLE": None}
# An array takes two calls, whose results then get their state. Neither is made here: the names
# stand for what they would give.
MAKE, ARRAY, DTYPE = "numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype"
CALLS = {MAKE: (ARRAY, (0,), b"b"), DTYPE: (b"u1", 0, 1)}
STATE_OF_UINT8 = (3, b"|", None, None, None, -1, -1, 0)


def read_pickle(content: bytes, source: str) -> object:
    r"""The plain value that a pickle holds.

    Args:
        content: The whole file; the caller limits its length.
        source: What to call it in errors.

    Returns:
        None, a bool, int, bytes or str; a (rows, columns) array of uint8; or a list, or a
        dictionary with keys of bytes or str, of such values.

    Raises:
        InvalidInputError: The file is damaged, or asks for anything else.

    Example:
        >>> read_pickle(b"\x80\x02}q\x01(U\x06labelsq\x02]q\x03(K\x06K\x09eu.", "a file")
        {b'labels': [6, 9]}
    """
    stack: list[Any] = []
    marks: list[int] = []
    at: int | None = 0
    try:
        for number, (instruction, argument, place) in enumerate(pickletools.genops(content)):
            at = place
            if number == MOST_INSTRUCTIONS:
                raise ValueError(f"it has more than {MOST_INSTRUCTIONS} instructions")
            _follow(instruction.name, argument, stack, marks)
        if len(stack) != 1 or marks or at != len(content) - 1:
            raise ValueError("it does not end with one value, at its end")
    except Exception as error:  # pickletools raises several kinds for damage
        raise InvalidInputError(
            f"{source} is refused: {error} (near byte {at}); it is cut short or damaged, or no "
            "official file, and was not unpickled"
        ) from error
    return stack[0]


def _follow(name: str, argument: Any, stack: list[Any], marks: list[int]) -> None:
    """Does what one instruction says, if it makes plain values."""
    if name in VALUES:
        stack.append(argument)
    elif name in STRINGS:
        stack.append(argument.encode("latin-1"))
    elif name in CONSTANTS:
        stack.append(CONSTANTS[name])
    elif name in EMPTY:
        stack.append(EMPTY[name]())
    elif name == "MARK":
        marks.append(len(stack))
    elif name in TUPLES:
        stack.append(tuple(_popped(TUPLES[name], stack, marks)))
    elif name in TAKES:
        values = _popped(TAKES[name], stack, marks)
        stack.append(_filled(name, _popped(1, stack, marks)[0], values))
    elif name == "GLOBAL" and argument in (MAKE, ARRAY, DTYPE):
        stack.append(argument)
    elif name == "GLOBAL":
        raise ValueError(f"it asks for {argument!a}")
    elif name not in IGNORED:
        raise ValueError(f"it holds the instruction {name}, and only plain data may")


def _popped(count: int | None, stack: list[Any], marks: list[int]) -> list[Any]:
    if count is None and not marks:
        raise ValueError("it goes back to a mark that was not set")
    start = marks.pop() if count is None else len(stack) - count
    if start < (marks[-1] if marks else 0):
        raise ValueError("it takes more values than there are")
    values = stack[start:]
    del stack[start:]
    return values


def _filled(name: str, target: Any, values: list[Any]) -> Any:
    """The list, dictionary or part of an array when values have been put into it."""
    keys = values[::2]
    match name, target, values:
        case "APPEND" | "APPENDS", list(), _:
            target.extend(values)
            return target
        case "SETITEM" | "SETITEMS", dict(), _ if all(isinstance(key, bytes | str) for key in keys):
            target.update(zip(keys, values[1::2], strict=True))
            return target
        case "REDUCE", str(), _ if target in CALLS and values == [CALLS[target]]:
            return ARRAY if target == MAKE else DTYPE
        case "BUILD", str(), _ if target == DTYPE and values == [STATE_OF_UINT8]:
            return DTYPE
        case "BUILD", str(), [(1, (int(rows), int(columns)), str(kind), False, bytes(pixels))]:
            if rows >= 0 and (target, kind, rows * columns) == (ARRAY, DTYPE, len(pixels)):
                return np.frombuffer(pixels, np.uint8).reshape(rows, columns)
    raise ValueError(f"its instruction {name} makes something else than plain data")
