"""Damage as disks, copies and careless programs do it, seeded: every case can be repeated."""

import random
from collections.abc import Callable, Iterator

LONGEST_RUN = 64


def corruptions(content: bytes, foreign: bytes, count: int, seed: int) -> Iterator[bytes]:
    """`count` damaged versions of a content; pieces of the foreign one get into it."""
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        damaged = content
        while damaged == content:
            for _ in range(rng.choice((1, 1, 1, 2, 4))):
                damaged = rng.choice(KINDS)(damaged, foreign, rng)
        yield damaged


def _flip_bits(content: bytes, foreign: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(content)
    for _ in range(rng.randint(1, 8) if damaged else 0):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def _truncate(content: bytes, foreign: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _extend(content: bytes, foreign: bytes, rng: random.Random) -> bytes:
    return content + rng.choice((rng.randbytes, bytes))(rng.randint(1, 300))


def _swap(content: bytes, foreign: bytes, rng: random.Random) -> bytes:
    a, b, c, d = sorted(rng.randrange(len(content) + 1) for _ in range(4))
    return content[:a] + content[c:d] + content[b:c] + content[a:b] + content[d:]


def _replace(content: bytes, foreign: bytes, rng: random.Random) -> bytes:
    """A piece becomes noise, zeros, ones, twice itself, nothing, or a piece of another file."""
    start, stop = _block(content, rng)
    first, last = _block(foreign, rng)
    length = stop - start
    pieces = [
        rng.randbytes(length),
        rng.choice((b"\0", b"\xff")) * length,
        content[start:stop] * 2,
        b"",
        foreign[first:last],
    ]
    return content[:start] + rng.choice(pieces) + content[stop:]


def _block(content: bytes, rng: random.Random) -> tuple[int, int]:
    """A piece of up to `LONGEST_RUN` bytes, often in the ends, where formats have headers."""
    length = rng.randint(1, LONGEST_RUN)
    last = max(len(content) - length, 0)
    start = rng.choice(
        (rng.randint(0, last), rng.randint(0, min(last, 200)), max(last - rng.randint(0, 200), 0))
    )
    return start, min(start + length, len(content))


KINDS: list[Callable[[bytes, bytes, random.Random], bytes]] = [
    *[_flip_bits] * 2,
    *[_replace] * 5,
    _truncate,
    _extend,
    _swap,
]
