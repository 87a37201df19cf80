"""The CUDA kernel: one stage of a plan, for all pairs of samples of a tile.

As in `sweep`, what the rectifier works on, by far the largest array, is never stored: a program
pulls, rectifies and pools in registers what makes up one pooled pair of pixels. It does so for
BLOCK x BLOCK pairs of samples, so that what is read of a sample serves BLOCK pairs.

Every sum is an explicit fused multiply-add or has nothing to fuse: how a kernel is compiled cannot
change its last bits, and two equal samples are found perfectly correlated.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _rectify(S, theta, left_sd, right_sd, p, q, left_shift, right_shift, slope, factor):
    """E[f f'] and theta * E[df df'], as in `sweep.pull_and_rectify`.

    p and q point to the two pixels' standard deviations; their inverses are a shift further on.
    """
    c = S * tl.load(left_sd + p + left_shift) * tl.load(right_sd + q + right_shift)
    c = tl.minimum(tl.maximum(c, -1.0), 1.0)
    angle = libdevice.acos(-c)  # pi - arccos(c)
    sine = tl.sqrt(tl.fma(-c, c, 1.0))
    derivative = tl.fma(angle, factor, slope)
    S = tl.fma(tl.load(left_sd + p) * factor * tl.load(right_sd + q), sine, derivative * S)
    return S, theta * derivative


# Otherwise the kernel would be compiled again for counts with other divisors.
@triton.jit(
    do_not_specialize=["n_targets", "n_columns", "blocks", "itself", "pixels", "channels", "size"]
)
def run_stage(
    left, right, left_sd, right_sd, S_out, theta_out,
    row_targets, row_sources, row_taps, row_shares, row_scales,
    column_targets, column_sources, column_taps, column_shares, column_scales,
    numbers, n_targets, n_columns, blocks, itself, pixels, channels, size,
    left_stride, right_stride, width, pairs,
    PRODUCTS: tl.constexpr, RECTIFIED: tl.constexpr, TANGENT: tl.constexpr,
    TANGENT_READ: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One pooled pair of pixels of BLOCK x BLOCK pairs of samples.

    With PRODUCTS, `left` and `right` are the samples (channels, pixels, stride); else they are S
    and the tangent kernel, (stored pairs, pairs), as the launch before stored them in S_out and
    theta_out. `left_sd` and `right_sd` are (2, size, stride), the standard deviations of the
    rectifier's pixels and their inverses. The tables are a `cuda.Axis` each, `numbers` is
    as there; together they make n_targets pooled pairs of pixels, in rows of n_columns.

    A tile has `pairs` = left samples * `width` pairs. A block of left samples meets each of the
    `blocks` of right samples, or with `itself`, where blocks = 1, the same block of them.
    """
    # Neighboring programs work on the same samples, whose covariances are then still in cache.
    target = tl.program_id(0) % n_targets
    tile = tl.program_id(0) // n_targets
    row = target // n_columns
    column = target % n_columns
    block = tile // blocks
    i = (block * BLOCK + tl.arange(0, BLOCK))[:, None]
    stored = (tile % blocks * BLOCK + tl.arange(0, BLOCK))[None, :]
    j = stored + itself * block * BLOCK
    place = i * width + stored

    bias = tl.load(numbers)
    trained = tl.load(numbers + 1)
    slope = tl.load(numbers + 2)
    factor = tl.load(numbers + 3)
    S_sum = tl.zeros((BLOCK, BLOCK), S_out.dtype.element_ty)
    theta_sum = tl.zeros((BLOCK, BLOCK), S_out.dtype.element_ty)
    for y in range(tl.load(row_targets + 2 * row), tl.load(row_targets + 2 * row + 1)):
        y_first = tl.load(row_sources + 4 * y)
        y_last = tl.load(row_sources + 4 * y + 1)
        y_left = tl.load(row_sources + 4 * y + 2)
        y_right = tl.load(row_sources + 4 * y + 3)
        for x in range(
            tl.load(column_targets + 2 * column), tl.load(column_targets + 2 * column + 1)
        ):
            x_first = tl.load(column_sources + 4 * x)
            x_last = tl.load(column_sources + 4 * x + 1)
            S = tl.zeros((BLOCK, BLOCK), S_out.dtype.element_ty)
            theta = tl.zeros((BLOCK, BLOCK), S_out.dtype.element_ty)
            for s in range(y_first, y_last):
                for t in range(x_first, x_last):
                    p = (tl.load(row_taps + 2 * s) + tl.load(column_taps + 2 * t)).to(tl.int64)
                    if PRODUCTS:
                        q = tl.load(row_taps + 2 * s + 1) + tl.load(column_taps + 2 * t + 1)
                        a = left + p * left_stride + i
                        b = right + q.to(tl.int64) * right_stride + j
                        for _ in range(channels):
                            S = tl.fma(tl.load(a), tl.load(b), S)
                            a += pixels.to(tl.int64) * left_stride
                            b += pixels.to(tl.int64) * right_stride
                    else:
                        S += tl.load(left + p * pairs + place)
                        if TANGENT_READ:
                            theta += tl.load(right + p * pairs + place)
            scale = tl.load(row_scales + y) * tl.load(column_scales + x)
            S = tl.fma(S, scale, bias)
            theta = tl.fma(theta, scale, trained * S)
            if RECTIFIED:
                p = (y_left + tl.load(column_sources + 4 * x + 2)).to(tl.int64) * left_stride + i
                q = (y_right + tl.load(column_sources + 4 * x + 3)).to(tl.int64) * right_stride + j
                left_shift = size.to(tl.int64) * left_stride
                right_shift = size.to(tl.int64) * right_stride
                S, theta = _rectify(
                    S, theta, left_sd, right_sd, p, q, left_shift, right_shift, slope, factor
                )  # fmt: skip
            S_sum += S
            theta_sum += theta
    share = tl.load(row_shares + row) * tl.load(column_shares + column)
    place = target.to(tl.int64) * pairs + place
    tl.store(S_out + place, S_sum * share)
    if TANGENT:
        tl.store(theta_out + place, theta_sum * share)
