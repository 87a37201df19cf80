"""Pickles of plain data, read without Python's `pickle`: nothing in a file can make anything run.

A pickle is a program for a stack machine whose instructions may import and call anything. This
machine knows only those that make plain values: numbers, strings, lists, dictionaries. The one
exception, an array of bytes as CIFAR-10's files hold it, is not run either: its instructions are
compared with the text that they always are, and only its two sizes and its bytes are taken.

Nothing can grow beyond the file: values cannot be used twice, because the instructions that fetch
a remembered value are not known here, so the work and the memory are linear in the file's length.
"""

import re
import struct

import numpy as np

from retarget.errors import InvalidInputError

# A file of CIFAR-10 takes 30,000; a list of the 165,000 paths of CORe50 500,000 in protocol 0.
MOST_INSTRUCTIONS = 2_000_000
DEEPEST = 8

STOP, MARK, IMPORT, LIST = b".", b"(", b"c", b"l"
# What to skip, with the length of its argument: the protocol, frames, and what is remembered.
SKIPPED = {b"\x80": 1, b"\x95": 8, b"q": 1, b"r": 4, b"\x94": 0}
CONSTANTS = {b"N": None, b"\x88": True, b"\x89": False}
INTEGERS = {b"K": struct.Struct("<B"), b"M": struct.Struct("<H"), b"J": struct.Struct("<i")}
EMPTY: dict[bytes, type] = {b"]": list, b"}": dict}
# Bytes of the length that goes before; Python 2's strings and Python 3's bytes are both bytes here.
BYTES = {b"U": 1, b"T": 4, b"C": 1, b"B": 4}
TEXTS = {b"\x8c": 1, b"X": 4}
# The lines of protocol 0: what is remembered, and strings of Python 2 and 3. Only plain characters:
# a backslash would have to be interpreted.
LINES = {
    b"p": re.compile(rb"[0-9]{1,9}\n"),
    b"S": re.compile(rb"(?P<quote>['\"])(?P<text>[ !#-&(-\[\]-~]*)(?P=quote)\n"),
    b"V": re.compile(rb"(?P<text>[ -\[\]-~]*)\n"),
}
# What fills a list or a dictionary, and with how many values; None: all since the last mark.
LIST_FILLS = {b"a": 1, b"e": None}
DICT_FILLS = {b"s": 2, b"u": None}

REMEMBER = rb"(?:q.|r.{4})?"
SIZE = rb"(?:K(.)|M(..)|J(.{4}))"
ARRAY = re.compile(
    REMEMBER.join(
        [
            rb"cnumpy\.core\.multiarray\n_reconstruct\n",
            rb"cnumpy\nndarray\n",
            rb"K\x00\x85",
            rb"U\x01b",
            rb"\x87",
            rb"R",
            rb"\(K\x01" + 2 * SIZE + rb"\x86",
            rb"cnumpy\ndtype\n",
            rb"U\x02u1",
            rb"K\x00K\x01\x87",
            rb"R",
            rb"\(K\x03U\x01\|",
            rb"NNNJ\xff{4}J\xff{4}K\x00t",
            rb"b\x89T(.{4})",
        ]
    ),
    re.DOTALL,
)
ARRAY_END = re.compile(REMEMBER + rb"t" + REMEMBER + rb"b", re.DOTALL)
IMPORTED_NAME = re.compile(rb"([^\n]{0,60})\n([^\n]{0,60})\n")


def read_pickle(content: bytes, source: str) -> object:
    r"""The plain value that a pickle holds; of protocols 0 and 1, lists of ASCII strings.

    Args:
        content: The whole file; the caller limits its length.
        source: What to call it in errors.

    Returns:
        None, a bool, int, bytes or str; a (rows, columns) array of uint8 that is a read-only view
        of `content`; or a list, or a dictionary with keys of bytes or str, of such values.

    Raises:
        InvalidInputError: The file is damaged, or asks for anything else.

    Example:
        >>> read_pickle(b"\x80\x02}q\x01(U\x06labelsq\x02]q\x03(K\x06K\x09eu.", "a file")
        {b'labels': [6, 9]}
    """
    value = Machine(content, source).run()
    if _deeper_than(DEEPEST, value):
        raise InvalidInputError(
            f"{source} nests lists and dictionaries more than {DEEPEST} deep; "
            "no file that is read here does"
        )
    return value


def _deeper_than(depth: int, value: object) -> bool:
    layer: list[object] = [value]
    for _ in range(depth):
        lists = [inner for outer in layer if isinstance(outer, list) for inner in outer]
        dicts = [inner for outer in layer if isinstance(outer, dict) for inner in outer.values()]
        layer = lists + dicts
    return any(isinstance(outer, list | dict) for outer in layer)


class Machine:
    """The stack machine of pickles, without everything that could do harm.

    Args:
        content: The whole file.
        source: What to call it in errors.
    """

    def __init__(self, content: bytes, source: str) -> None:
        self._content = content
        self._source = source
        self._place = 0
        self._stack: list[object] = []
        self._marks: list[int] = []

    def run(self) -> object:
        """The one value that the program makes."""
        for _ in range(MOST_INSTRUCTIONS):
            instruction = self._take(1)
            if instruction == STOP:
                return self._result()
            self._follow(instruction)
        raise self._error(f"it has more than {MOST_INSTRUCTIONS} instructions")

    def _follow(self, instruction: bytes) -> None:
        if instruction in SKIPPED:
            self._take(SKIPPED[instruction])
        elif instruction in INTEGERS:
            form = INTEGERS[instruction]
            self._stack.extend(form.unpack(self._take(form.size)))
        elif instruction in BYTES:
            self._stack.append(self._string(BYTES[instruction]))
        elif instruction in TEXTS:
            self._stack.append(self._text(TEXTS[instruction]))
        elif instruction in LINES:
            self._stack.extend(self._line(instruction))
        elif instruction in CONSTANTS:
            self._stack.append(CONSTANTS[instruction])
        elif instruction in EMPTY:
            self._stack.append(EMPTY[instruction]())
        elif instruction == MARK:
            self._marks.append(len(self._stack))
        elif instruction == LIST:
            self._stack.append(self._since_mark())
        elif instruction in LIST_FILLS:
            self._fill_list(LIST_FILLS[instruction])
        elif instruction in DICT_FILLS:
            self._fill_dict(DICT_FILLS[instruction])
        elif instruction == IMPORT:
            self._stack.append(self._array())
        else:
            raise self._error(f"it holds the instruction {instruction!r}, and only plain data may")

    def _take(self, count: int) -> bytes:
        taken = self._content[self._place : self._place + count]
        if len(taken) < count:
            raise InvalidInputError(f"{self._source} is cut short: it ends within a pickle")
        self._place += count
        return taken

    def _string(self, length_size: int) -> bytes:
        return self._take(int.from_bytes(self._take(length_size), "little"))

    def _text(self, length_size: int) -> str:
        try:
            return self._string(length_size).decode()
        except UnicodeDecodeError as error:
            raise self._error(f"a text in it is not UTF-8 ({error.reason})") from error

    def _line(self, instruction: bytes) -> list[object]:
        """The value of a line, bytes for Python 2's strings; none for what is remembered."""
        found = LINES[instruction].match(self._content, self._place)
        if found is None:
            raise self._error(f"the line of its instruction {instruction!r} is not plain ASCII")
        self._place = found.end()
        if "text" not in found.groupdict():
            return []
        return [found["text"] if instruction == b"S" else found["text"].decode("ascii")]

    def _since_mark(self) -> list[object]:
        if not self._marks:
            raise self._error("it makes a list from a mark that was not set")
        start = self._marks.pop()
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def _fill_list(self, count: int | None) -> None:
        container, values = self._pop(count)
        if not isinstance(container, list):
            raise self._error("it fills a list where there is none")
        container.extend(values)

    def _fill_dict(self, count: int | None) -> None:
        container, values = self._pop(count)
        if not isinstance(container, dict) or len(values) % 2:
            raise self._error("it fills a dictionary where there is none, or half an entry")
        keys = values[::2]
        if not all(isinstance(key, bytes | str) for key in keys):
            raise self._error("a dictionary in it has keys that are not strings")
        container.update(zip(keys, values[1::2], strict=True))

    def _pop(self, count: int | None) -> tuple[object, list[object]]:
        """Takes the values to fill in from the stack; what they go into stays there."""
        if count is None and not self._marks:
            raise self._error("it fills from a mark that was not set")
        start = self._marks.pop() if count is None else len(self._stack) - count
        # Nothing below the mark before this one may be touched.
        if start <= (self._marks[-1] if self._marks else 0):
            raise self._error("it takes more values than there are")
        values = self._stack[start:]
        del self._stack[start:]
        return self._stack[-1], values

    def _array(self) -> np.ndarray:
        start = ARRAY.match(self._content, self._place - 1)
        if start is None:
            raise self._error(f"it asks for {self._imported_name()}")
        self._place = start.end()
        *sizes, length = (int.from_bytes(group, "little") for group in start.groups() if group)
        rows, columns = sizes
        if rows * columns != length:
            raise self._error(f"its array of {rows} x {columns} values has {length} bytes")
        if self._place + length > len(self._content):
            raise InvalidInputError(f"{self._source} is cut short: it ends within its array")
        values = np.ndarray((rows, columns), np.uint8, self._content, self._place)
        end = ARRAY_END.match(self._content, self._place + length)
        if end is None:
            raise self._error("its array does not end where it should")
        self._place = end.end()
        return values

    def _imported_name(self) -> str:
        found = IMPORTED_NAME.match(self._content, self._place)
        if found is None:
            return "something without a name"
        return ascii(b".".join(found.groups()).decode("latin-1"))

    def _result(self) -> object:
        if len(self._stack) != 1 or self._marks:
            raise self._error("it does not end with one value")
        if self._place != len(self._content):
            raise self._error("it goes on after its end")
        return self._stack[0]

    def _error(self, what: str) -> InvalidInputError:
        return InvalidInputError(
            f"{self._source} is refused: {what} (near byte {self._place}); "
            "it is damaged, or no official file, and was not unpickled"
        )
