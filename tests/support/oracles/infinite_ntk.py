"""The infinite-width kernel by the book: full pixel-by-pixel covariances, one loop after another.

Written from the recursions alone, on the modules themselves: no plan, no band, no symmetry. S[a][b]
is the covariance between every pixel of sample a and every pixel of sample b, as (H, W, H, W).
"""

import math
from functools import cache

import numpy as np
from scipy.special import ndtr
from torch import nn


def pair_kernel(module, x, y, weight_std=1.0, bias_std=0.0):
    """(NTK, NNGP) of two samples (C, H, W) or (d,), in float64."""
    samples = [np.asarray(s, dtype=np.float64).reshape(*np.shape(s), *(1,) * (3 - np.ndim(s)))
               for s in (x, y)]  # fmt: skip
    S = {
        (a, b): np.einsum("cij,ckl->ijkl", samples[a], samples[b]) / len(samples[a])
        for a in (0, 1)
        for b in (0, 1)
    }
    T = {key: np.zeros_like(value) for key, value in S.items()}
    for layer in _leaves(module):
        if isinstance(layer, nn.ReLU | nn.LeakyReLU):
            S, T = _rectify(S, T, getattr(layer, "negative_slope", 0.0))
            continue
        apply = _linear(layer)
        S = {key: apply(value) for key, value in S.items()}
        T = {key: apply(value) for key, value in T.items()}
        if isinstance(layer, nn.Linear | nn.Conv2d):
            S = {key: weight_std**2 * value + bias_std**2 for key, value in S.items()}
            T = {key: weight_std**2 * T[key] + S[key] for key in S}
    assert S[0, 1].shape == (1, 1, 1, 1)
    return T[0, 1].item(), S[0, 1].item()


def gram(module, A, B, **options):
    """(NTK, NNGP) matrices between the samples of A and of B."""
    values = [[pair_kernel(module, a, b, **options) for b in B] for a in A]
    return np.moveaxis(np.array(values), 2, 0)


def _leaves(module):
    for part in module:
        yield from _leaves(part) if isinstance(part, nn.Sequential) else [part]


def _rectify(S, T, slope):
    new_S, new_T = {}, {}
    for (a, b), value in S.items():
        left = np.einsum("ijij->ij", S[a, a])[:, :, None, None]
        right = np.einsum("ijij->ij", S[b, b])[None, None, :, :]
        r = np.sqrt(left * right)
        c = np.clip(np.divide(value, r, out=np.zeros_like(value), where=r > 0), -1, 1)
        angle = math.pi - np.arccos(c)
        relu = r * (np.sqrt(1 - c**2) + angle * c) / (2 * math.pi)
        step = angle / (2 * math.pi)
        new_S[a, b] = (1 - slope) ** 2 * relu + slope * value
        new_T[a, b] = T[a, b] * ((1 - slope) ** 2 * step + slope)
    return new_S, new_T


@cache
def _nodes(count):
    """Of a quadrature for a standard normal variable, and their weights."""
    x, weight = np.polynomial.hermite_e.hermegauss(count)
    return x, weight / weight.sum()


def gelu_moments(left, right, covariance, nodes=240):
    """E[f(u) f(v)] and E[f'(u) f'(v)] of the GELU by Gauss-Hermite quadrature: no closed form.

    For variances up to 9, so many nodes leave an error below 1e-11.
    """
    x, weight = _nodes(nodes)
    u = math.sqrt(left) * x[:, None]
    slope = covariance / left
    v = slope * u + math.sqrt(max(right - slope * covariance, 0.0)) * x[None, :]
    both = weight[:, None] * weight[None, :]

    def value(z):
        return z * ndtr(z)

    def derivative(z):
        return ndtr(z) + z * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)

    return (both * value(u) * value(v)).sum(), (both * derivative(u) * derivative(v)).sum()


def _linear(layer):
    if isinstance(layer, nn.Conv2d):
        return lambda S: _convolve(S, layer)
    if isinstance(layer, nn.AvgPool2d):
        return lambda S: _pool(S, layer)
    if isinstance(layer, nn.AdaptiveAvgPool2d):
        return lambda S: _adaptive(S, layer)
    if isinstance(layer, nn.Flatten):
        return lambda S: np.einsum("ijij->", S).reshape(1, 1, 1, 1) / (S.shape[0] * S.shape[1])
    assert isinstance(layer, nn.Linear | nn.Identity)
    return lambda S: S


def _two(value):
    return value if isinstance(value, tuple) else (value, value)


def _convolve(S, conv):
    (kh, kw), (sh, sw), (dh, dw) = map(_two, (conv.kernel_size, conv.stride, conv.dilation))
    if conv.padding == "same":
        th, tw = dh * (kh - 1), dw * (kw - 1)
        ph, pw = (th // 2, th - th // 2), (tw // 2, tw - tw // 2)
    else:
        both = (0, 0) if conv.padding == "valid" else _two(conv.padding)
        ph, pw = (both[0], both[0]), (both[1], both[1])
    S = np.pad(S, (ph, pw, ph, pw))
    h = (S.shape[0] - dh * (kh - 1) - 1) // sh + 1
    w = (S.shape[1] - dw * (kw - 1) - 1) // sw + 1
    out = np.zeros((h, w, h, w))
    for i, j, k, m in np.ndindex(h, w, h, w):
        for u in range(kh):
            for v in range(kw):
                p = i * sh + u * dh, j * sw + v * dw
                q = k * sh + u * dh, m * sw + v * dw
                out[i, j, k, m] += S[(*p, *q)] / (kh * kw)
    return out


def _average(S, windows):
    """Averages over every pair of windows; a window is a list of pixels and a divisor."""
    h, w = len(windows), len(windows[0])
    out = np.zeros((h, w, h, w))
    for i, j, k, m in np.ndindex(h, w, h, w):
        (left, left_count), (right, right_count) = windows[i][j], windows[k][m]
        total = sum(S[(*p, *q)] for p in left for q in right)
        out[i, j, k, m] = total / (left_count * right_count)
    return out


def _pool(S, pool):
    (kh, kw), (sh, sw), (ph, pw) = map(_two, (pool.kernel_size, pool.stride, pool.padding))
    H, W = S.shape[:2]
    h, w = (H + 2 * ph - kh) // sh + 1, (W + 2 * pw - kw) // sw + 1
    windows = []
    for i in range(h):
        windows.append([])
        for j in range(w):
            rows = [y for y in range(i * sh - ph, i * sh - ph + kh) if 0 <= y < H]
            columns = [x for x in range(j * sw - pw, j * sw - pw + kw) if 0 <= x < W]
            pixels = [(y, x) for y in rows for x in columns]
            windows[-1].append((pixels, kh * kw if pool.count_include_pad else len(pixels)))
    return _average(S, windows)


def _adaptive(S, pool):
    H, W = S.shape[:2]
    h, w = (size or given for size, given in zip(_two(pool.output_size), (H, W), strict=True))

    def span(i, size, outputs):
        return range(math.floor(i * size / outputs), math.ceil((i + 1) * size / outputs))

    windows = []
    for i in range(h):
        row = [[(y, x) for y in span(i, H, h) for x in span(j, W, w)] for j in range(w)]
        windows.append([(pixels, len(pixels)) for pixels in row])
    return _average(S, windows)
