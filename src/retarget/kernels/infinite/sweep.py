"""The compiled loops: one plan, carried out for sixteen pairs of samples at a time.

Sixteen numbers are one value, `Lanes`: left to itself the compiler makes half-width vectors behind
run-time checks for overlapping arrays, while a value of LLVM's own vector type is held in a
register, as wide as the machine has them. Plain `njit` loops over the sixteen numbers gave the same
kernel in 5 times the time (benchmarks/infinite_ntk.py, float32, the two in turns on one core).

Everything is a flat array and an offset into it, in units of sixteen numbers: entry e of a level is
at `offset + LANES * e`, its sixteen numbers are the same covariance of sixteen pairs of samples.
`header` has a row for each stage, whose columns are named below; they say where in `index` and
`scale` the stage's maps begin, and where in `work` its levels are.
"""

import math
import operator
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import models, overload, register_model

LANES = 16
intrinsic: Any = numba.extending.intrinsic  # type checkers cannot follow how it changes signatures


class Lanes(types.Type):
    """The Numba type of sixteen numbers of one floating-point type."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        scalar = ir.FloatType() if lanes.dtype == types.float32 else ir.DoubleType()
        super().__init__(manager, lanes, ir.VectorType(scalar, LANES))  # type: ignore[no-untyped-call]


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    values = context.make_array(array_type)(context, builder, array)
    vector = context.get_value_type(Lanes(array_type.dtype))
    return builder.bitcast(builder.gep(values.data, [index]), vector.as_pointer())


@intrinsic
def load(typing: Any, array: Any, index: Any) -> Any:
    """Sixteen numbers of a flat array, starting at an index."""
    lanes = Lanes(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, array, *arguments)
        return builder.load(pointer, align=array.dtype.bitwidth // 8)

    return lanes(array, types.intp), generate


@intrinsic
def item(typing: Any, array: Any, index: Any) -> Any:
    """One number of a flat array, without Python's rule that negative indices count backwards."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values = context.make_array(array)(context, builder, arguments[0])
        return builder.load(builder.gep(values.data, [arguments[1]]))

    return array.dtype(array, types.intp), generate


@intrinsic
def store(typing: Any, array: Any, index: Any, lanes: Any) -> Any:
    """Writes sixteen numbers into a flat array, starting at an index."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, array, *arguments[:2])
        builder.store(arguments[2], pointer, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), generate


@intrinsic
def splat(typing: Any, like: Any, number: Any) -> Any:
    """One number, sixteen times, in the precision of an array or of other lanes."""
    lanes = Lanes(like.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = context.get_value_type(lanes)
        value = context.cast(builder, arguments[1], number, lanes.dtype)
        nothing = ir.Constant(vector, ir.Undefined)
        first = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return builder.shuffle_vector(first, nothing, zeros)

    return lanes(like, number), generate


def _library(name: str) -> Any:
    """Generates a call of LLVM's own function of that name."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = context.get_value_type(signature.return_type)
        bits = signature.return_type.dtype.bitwidth
        kind = ir.FunctionType(vector, [vector] * len(arguments))
        function = builder.module.declare_intrinsic(f"llvm.{name}.v{LANES}f{bits}", (), kind)
        return builder.call(function, arguments)

    return generate


@intrinsic
def fused(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """The sum a * b + c, rounded once."""
    return a(a, a, a), _library("fma")


@intrinsic
def root(typing: Any, a: Any) -> Any:
    """The square root."""
    return a(a), _library("sqrt")


@intrinsic
def magnitude(typing: Any, a: Any) -> Any:
    """The absolute value."""
    return a(a), _library("fabs")


@intrinsic
def with_sign(typing: Any, a: Any, b: Any) -> Any:
    """The size of a with the sign of b."""
    return a(a, a), _library("copysign")


@intrinsic
def where_above(typing: Any, a: Any, b: Any, yes: Any, no: Any) -> Any:
    """`yes` in the lanes where a > b, `no` in the others."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *arguments[:2]), *arguments[2:])

    return a(a, a, a, a), generate


def _give_operator(symbol: Any, instruction: str) -> None:
    """Makes Numba use the instruction for the operator between two `Lanes`."""

    @intrinsic
    def operation(typing: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, instruction)(*arguments)

        return a(a, a), generate

    @overload(symbol)
    def choose(a: Any, b: Any) -> Any:
        def operate(a: Any, b: Any) -> Any:  # Numba requires the same signature
            return operation(a, b)

        return operate if isinstance(a, Lanes) and a == b else None


_give_operator(operator.add, "fadd")
_give_operator(operator.sub, "fsub")
_give_operator(operator.mul, "fmul")


def compiled(function: Any) -> Any:
    """Compiles a function without the interpreter's lock, cached on disk if possible."""
    try:
        return numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # no writable cache folder
        return numba.njit(nogil=True, error_model="numpy")(function)


(
    # sizes: row pairs and column pairs of the rectifier; column pairs read, and stored next
    ROWS, COLUMNS_PULLED, COLUMNS_READ, COLUMNS_STORED, NUMBERS_STORED,
    # offsets into index
    PULL_ROW_STARTS, PULL_ROW_TAPS, PULL_COLUMN_STARTS, PULL_COLUMN_TAPS,
    PUSH_ROW_STARTS, PUSH_ROW_TARGETS, PUSH_COLUMN_STARTS, PUSH_COLUMN_TAPS,
    ROW_LEFT, ROW_RIGHT, COLUMN_LEFT, COLUMN_RIGHT,
    INPUT_ROW_LEFT, INPUT_ROW_RIGHT, INPUT_COLUMN_LEFT, INPUT_COLUMN_RIGHT,
    # offsets into scale
    PULL_ROW_SCALE, PULL_COLUMN_SCALE, PUSH_ROW_SCALE, PUSH_COLUMN_SCALE, BIAS, SLOPE,
    # offsets into work
    READ, READ_TANGENT, STORED, STORED_TANGENT, SUM, SUM_TANGENT, ROW, ROW_TANGENT,
    # flags, the place of the rectifier's deviations, the input's channels and their stride
    FROM_INPUT, TRAINED, RECTIFIED, DEVIATIONS, CHANNELS, CHANNEL_STRIDE,
) = COLUMNS = range(41)  # fmt: skip

# With z in [0, 1/4]: (arcsin(sqrt z) / sqrt z - 1) / z and sqrt(1 - z), Chebyshev fits in mpmath,
# highest power first. The first are right to 2e-8 and 6e-9, the last to 4e-18.
ARCSINE_32 = (0.03808502356, 0.02655454221, 0.04500138007, 0.07498855073, 0.1666667241)
COSINE_32 = (
    -0.05078177437, -0.03161308982, -0.06352240179, -0.124938268, -0.5000013422, 1.000000005,
)  # fmt: skip
ARCSINE_64 = (
    0.0296120112649551204, -0.0192416717467430407, 0.0195545133361233789, 0.0030448799094556774,
    0.0093195607947674463, 0.00962184297010028102, 0.0115664596121216686, 0.0139637800122035696,
    0.017352816540325495, 0.0223721574435072224, 0.03038194447553234, 0.0446428571425518929,
    0.0750000000000011775, 0.166666666666666666,
)  # fmt: skip


def arcsine_factor(z: Any) -> Any:
    """(arcsin(sqrt z) / sqrt z - 1) / z for z in [0, 1/4]."""


def cosine_factor(z: Any) -> Any:
    """sqrt(1 - z) for z in [0, 1/4]."""


def _polynomial(coefficients: tuple[float, ...]) -> Any:
    def evaluate(z: Any) -> Any:
        value = splat(z, coefficients[0])
        for number in coefficients[1:]:
            value = fused(value, z, splat(z, number))
        return value

    return evaluate


@overload(arcsine_factor)
def _arcsine_factor(z: Any) -> Any:
    return _polynomial(ARCSINE_32 if z.dtype.bitwidth == 32 else ARCSINE_64)


@overload(cosine_factor)
def _cosine_factor(z: Any) -> Any:
    def exact(z: Any) -> Any:
        return root(splat(z, 1.0) - z)

    return _polynomial(COSINE_32) if z.dtype.bitwidth == 32 else exact


@compiled
def angle_and_sine(c: Any) -> Any:
    """The angle pi - arccos(c) and sqrt(1 - c^2), without a branch; c is clipped.

    For |c| >= 1/2, arcsin c = pi/2 - 2 arcsin(sqrt z) with z = (1 - |c|) / 2, which loses no
    digits where the arcsine is steep; below, z = c^2. Either way z <= 1/4.
    """
    half, one, size = splat(c, 0.5), splat(c, 1.0), magnitude(c)
    size = where_above(one, size, size, one)
    z = where_above(size, half, half - half * size, size * size)
    s = root(z)
    arcsine = fused(s * z, arcsine_factor(z), s)
    cosine = cosine_factor(z)
    quarter = splat(c, math.pi / 2)
    arcsine = where_above(size, half, quarter - arcsine - arcsine, arcsine)
    sine = where_above(size, half, (s + s) * cosine, cosine)
    return quarter + with_sign(arcsine, c), sine


@compiled
def add_channel_products(h: Any, index: Any, left: Any, right: Any, work: Any, row: int) -> None:
    """SUM[e] = the sum over the row's taps and the channels of left(pixel) * right(pixel)."""
    taps, stride, channels = h[PULL_ROW_TAPS], h[CHANNEL_STRIDE], h[CHANNELS]
    first, last = index[h[PULL_ROW_STARTS] + row], index[h[PULL_ROW_STARTS] + row + 1]
    row_lefts, row_rights = h[INPUT_ROW_LEFT], h[INPUT_ROW_RIGHT]
    for e in range(h[COLUMNS_READ]):
        i, j = index[h[INPUT_COLUMN_LEFT] + e], index[h[INPUT_COLUMN_RIGHT] + e]
        total = splat(work, 0.0)
        for tap in range(taps + first, taps + last):
            pair = item(index, tap)
            p, q = item(index, row_lefts + pair) + i, item(index, row_rights + pair) + j
            for channel in range(channels):
                shift = channel * stride
                total = fused(load(left, p + shift), load(right, q + shift), total)
        store(work, h[SUM] + e * LANES, total)


@compiled
def add_products(
    h: Any, index: Any, left: Any, right: Any, work: Any, row: int, channel: int
) -> None:
    """The same channel by channel, three taps at a time: a row of a 3 x 3 convolution.

    Faster for images, whose rows are long; slower for vectors, which are all channels.
    """
    shift, fresh = channel * h[CHANNEL_STRIDE], channel == 0
    taps, width, target = h[PULL_ROW_TAPS], h[COLUMNS_READ], h[SUM]
    first, last = index[h[PULL_ROW_STARTS] + row], index[h[PULL_ROW_STARTS] + row + 1]
    row_lefts, row_rights = h[INPUT_ROW_LEFT], h[INPUT_ROW_RIGHT]
    lefts, rights = h[INPUT_COLUMN_LEFT], h[INPUT_COLUMN_RIGHT]
    whole = last - (last - first) % 3
    if fresh and whole == first:
        for e in range(width):
            store(work, target + e * LANES, splat(work, 0.0))
    for tap in range(first, whole, 3):
        a, b, c = index[taps + tap], index[taps + tap + 1], index[taps + tap + 2]
        p0, q0 = index[row_lefts + a] + shift, index[row_rights + a] + shift
        p1, q1 = index[row_lefts + b] + shift, index[row_rights + b] + shift
        p2, q2 = index[row_lefts + c] + shift, index[row_rights + c] + shift
        new = fresh and tap == first
        for e in range(width):
            i, j, place = item(index, lefts + e), item(index, rights + e), target + e * LANES
            total = splat(work, 0.0) if new else load(work, place)
            total = fused(load(left, p0 + i), load(right, q0 + j), total)
            total = fused(load(left, p1 + i), load(right, q1 + j), total)
            store(work, place, fused(load(left, p2 + i), load(right, q2 + j), total))
    for tap in range(whole, last):
        a = index[taps + tap]
        p0, q0 = index[row_lefts + a] + shift, index[row_rights + a] + shift
        for e in range(width):
            i, j, place = item(index, lefts + e), item(index, rights + e), target + e * LANES
            total = load(work, place)
            store(work, place, fused(load(left, p0 + i), load(right, q0 + j), total))


@compiled
def add_rows(h: Any, index: Any, work: Any, row: int, level: int, target: int) -> None:
    """target[e] = the sum of the level's rows that are the row's taps."""
    first, last = index[h[PULL_ROW_STARTS] + row], index[h[PULL_ROW_STARTS] + row + 1]
    width, taps = h[COLUMNS_READ], h[PULL_ROW_TAPS]
    for e in range(width):
        total = splat(work, 0.0)
        for tap in range(taps + first, taps + last):
            total = total + load(work, level + (item(index, tap) * width + e) * LANES)
        store(work, target + e * LANES, total)


@compiled
def add_entries(index: Any, work: Any, first: int, last: int, row: int) -> Any:
    """The sum of the entries of a row that are the taps from first to last."""
    total = splat(work, 0.0)
    for tap in range(first, last):
        total = total + load(work, row + item(index, tap))
    return total


@compiled
def pull_sums(
    h: Any, index: Any, left: Any, right: Any, work: Any, row: int, tangent: bool
) -> None:
    """The vertical half of what the stage pulls for one row of pairs."""
    if h[FROM_INPUT] and h[COLUMNS_READ] == 1:
        add_channel_products(h, index, left, right, work, row)
    elif h[FROM_INPUT]:
        for channel in range(h[CHANNELS]):
            add_products(h, index, left, right, work, row, channel)
    else:
        add_rows(h, index, work, row, h[READ], h[SUM])
        if tangent:
            add_rows(h, index, work, row, h[READ_TANGENT], h[SUM_TANGENT])


@compiled
def measure(h: Any, index: Any, scale: Any, left: Any, work: Any, deviations: Any) -> None:
    """Standard deviations and their inverses, from the pairs of a pixel with itself.

    The inverses are rounded up until a sample's correlation with itself is at least 1: clipped
    to 1, it is then exact, whereas an error of eps would grow to sqrt(eps) in the arccosine.
    """
    one = deviations.dtype.type(1)  # a plain 1 would make it double precision
    for row in range(h[ROWS]):
        if index[h[ROW_LEFT] + row] != index[h[ROW_RIGHT] + row]:
            continue
        pull_sums(h, index, left, left, work, row, False)
        for e in range(h[COLUMNS_PULLED]):
            if index[h[COLUMN_LEFT] + e] != index[h[COLUMN_RIGHT] + e]:
                continue
            first = h[PULL_COLUMN_TAPS] + index[h[PULL_COLUMN_STARTS] + e]
            last = h[PULL_COLUMN_TAPS] + index[h[PULL_COLUMN_STARTS] + e + 1]
            total = add_entries(index, work, first, last, h[SUM])
            factor = scale[h[PULL_ROW_SCALE] + row] * scale[h[PULL_COLUMN_SCALE] + e]
            pixel = index[h[ROW_LEFT] + row] + index[h[COLUMN_LEFT] + e]
            variance = fused(total, splat(work, factor), splat(work, scale[h[BIAS]]))
            store(deviations, pixel, root(variance))
            store(deviations, pixel + LANES, variance)
            for lane in range(pixel, pixel + LANES):
                deviation, square = deviations[lane], deviations[lane + LANES]
                inverse = one / deviation if deviation > 0 else deviation
                for _ in range(4):  # eps / 2 lost in each of root, division and two products
                    if square * inverse * inverse < one:
                        inverse = np.nextafter(inverse, inverse + inverse)
                deviations[lane + LANES] = inverse


def pulled_and_rectified(
    sums: Any, sums_tangent: Any, taps: Any, size: Any, bias: Any, slope: Any, trained: Any,
    left_sd: Any, right_sd: Any,
) -> Any:  # fmt: skip
    """What `pull_and_rectify` computes, in NumPy: its specification, which a test compares it with.

    `taps` (columns, columns read) is 1 where a sum (columns read, pairs) counts, `size` (columns,
    1) its scale; the standard deviations are (columns, pairs).
    """
    S = size * (taps @ sums) + bias
    theta = trained * S + size * (taps @ sums_tangent)
    r = left_sd * right_sd
    c = np.clip(S / r, -1, 1)
    angle = np.pi - np.arccos(c)
    factor = (1 - slope) ** 2 / (2 * np.pi)
    derivative = factor * angle + slope
    return factor * r * np.sqrt(1 - c**2) + derivative * S, theta * derivative


@compiled
def pull_and_rectify(
    h: Any, index: Any, scale: Any, work: Any, left: Any, right: Any, row: int, tangent: bool
) -> None:  # fmt: skip
    """The horizontal half of the pull, then the rectifier: ROW and ROW_TANGENT.

    Packed for its speed; `pulled_and_rectified` above is the same without the packing.

    A rectifier of slope a has E[f f'] = (1 - a)^2 (r sin + angle S) / 2 pi + a S and
    E[df df'] = (1 - a)^2 angle / 2 pi + a, with angle = pi - arccos(c), c = S / r, r = sd sd'.
    """
    slope, bias = scale[h[SLOPE]], splat(work, scale[h[BIAS]])
    factor = (1 - slope) * (1 - slope) / (2 * math.pi)
    starts, taps, scales = h[PULL_COLUMN_STARTS], h[PULL_COLUMN_TAPS], h[PULL_COLUMN_SCALE]
    row_scale = splat(work, scale[h[PULL_ROW_SCALE] + row])
    left_row, right_row = index[h[ROW_LEFT] + row], index[h[ROW_RIGHT] + row]
    lefts, rights, sums, sums_tangent = h[COLUMN_LEFT], h[COLUMN_RIGHT], h[SUM], h[SUM_TANGENT]
    target, target_tangent = h[ROW], h[ROW_TANGENT]
    trained, rectified, pulls_tangent = h[TRAINED], h[RECTIFIED], tangent and not h[FROM_INPUT]
    for e in range(h[COLUMNS_PULLED]):
        first, last = taps + item(index, starts + e), taps + item(index, starts + e + 1)
        size = row_scale * splat(work, item(scale, scales + e))
        S = fused(add_entries(index, work, first, last, sums), size, bias)
        theta = S if trained else splat(work, 0.0)
        if pulls_tangent:
            theta = fused(add_entries(index, work, first, last, sums_tangent), size, theta)
        if rectified:
            p, q = left_row + item(index, lefts + e), right_row + item(index, rights + e)
            c = S * load(left, p + LANES) * load(right, q + LANES)
            angle, sine = angle_and_sine(c)
            derivative = fused(angle, splat(work, factor), splat(work, slope))
            S = fused(splat(work, factor) * load(left, p) * load(right, q), sine, derivative * S)
            theta = theta * derivative
        store(work, target + e * LANES, S)
        store(work, target_tangent + e * LANES, theta)


@compiled
def push(h: Any, index: Any, scale: Any, work: Any, row: int, source: int, stored: int) -> None:
    """Adds a row of pairs to the pooled pairs that it is part of."""
    first, last = index[h[PUSH_ROW_STARTS] + row], index[h[PUSH_ROW_STARTS] + row + 1]
    width, starts, taps = h[COLUMNS_STORED], h[PUSH_COLUMN_STARTS], h[PUSH_COLUMN_TAPS]
    targets, scales, row_scales = h[PUSH_ROW_TARGETS], h[PUSH_COLUMN_SCALE], h[PUSH_ROW_SCALE]
    for e in range(width):
        start, stop = taps + item(index, starts + e), taps + item(index, starts + e + 1)
        total = add_entries(index, work, start, stop, source)
        total = total * splat(work, item(scale, scales + e))
        for target in range(targets + first, targets + last):
            pair = item(index, target)
            place = stored + (pair * width + e) * LANES
            share = splat(work, item(scale, row_scales + pair))
            store(work, place, fused(total, share, load(work, place)))


@compiled
def sweep(
    header: Any, index: Any, scale: Any, left: Any, left_sd: Any, right: Any, right_sd: Any,
    work: Any, tangent: bool, itself: bool,
) -> Any:  # fmt: skip
    """Runs all stages for sixteen pairs; returns where in `work` the kernel's values are.

    With `itself`, left and right are the same samples, and their standard deviations are measured
    on the way instead of read.
    """
    for stage in range(len(header)):
        h = header[stage]
        for e in range(h[NUMBERS_STORED]):
            store(work, h[STORED] + e * LANES, splat(work, 0.0))
            store(work, h[STORED_TANGENT] + e * LANES, splat(work, 0.0))
        left_here, right_here = left_sd[h[DEVIATIONS] :], right_sd[h[DEVIATIONS] :]
        if itself and h[RECTIFIED]:
            measure(h, index, scale, left, work, left_here)
        for row in range(h[ROWS]):
            pull_sums(h, index, left, right, work, row, tangent)
            pull_and_rectify(h, index, scale, work, left_here, right_here, row, tangent)
            push(h, index, scale, work, row, h[ROW], h[STORED])
            if tangent:
                push(h, index, scale, work, row, h[ROW_TANGENT], h[STORED_TANGENT])
    last = header[len(header) - 1]
    return last[STORED_TANGENT] if tangent else last[STORED]


@compiled
def spread(source: Any, lane: int, target: Any) -> None:
    """Copies one of sixteen samples to all sixteen lanes."""
    for e in range(len(target) // LANES):
        store(target, e * LANES, splat(source, source[e * LANES + lane]))


@compiled
def fill_tile(
    header: Any, index: Any, scale: Any, lefts: Any, left_sds: Any, rights: Any, right_sds: Any,
    work: Any, sample: Any, sample_sd: Any, tangent: bool, rows: Any, blocks: Any, out: Any,
) -> None:  # fmt: skip
    """out[rows, columns of the blocks] = the kernel; a row's sample meets sixteen at a time."""
    for row in range(rows[0], rows[1]):
        spread(lefts[row // LANES], row % LANES, sample)
        spread(left_sds[row // LANES], row % LANES, sample_sd)
        for block in range(blocks[0], blocks[1]):
            right, right_sd = rights[block], right_sds[block]
            place = sweep(
                header, index, scale, sample, sample_sd, right, right_sd, work, tangent, False
            )
            column = block * LANES
            for lane in range(min(LANES, out.shape[1] - column)):
                out[row, column + lane] = work[place + lane]


@compiled
def fill_self(
    header: Any, index: Any, scale: Any, samples: Any, sds: Any, work: Any, tangent: bool,
    blocks: Any, out: Any,
) -> None:  # fmt: skip
    """out[sample] = the kernel of each sample with itself, and all its standard deviations."""
    for block in range(blocks[0], blocks[1]):
        here, sd = samples[block], sds[block]
        place = sweep(header, index, scale, here, sd, here, sd, work, tangent, True)
        for lane in range(min(LANES, len(out) - block * LANES)):
            out[block * LANES + lane] = work[place + lane]
