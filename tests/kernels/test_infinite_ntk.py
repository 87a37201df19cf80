"""The infinite-width kernel against a literal oracle, neural-tangents, and finite networks."""

import json
import math
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from golden.infinite_ntk_networks import NETWORKS
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import retarget as rt
from retarget.errors import InvalidInputError, InvalidTypeError, StreamTooLargeError
from retarget.kernels import kernel_from_dict
from retarget.kernels.infinite import cuda, ntk
from retarget.kernels.infinite import torch as torch_engine
from retarget.kernels.infinite.plan import make_plan
from support.oracles.infinite_ntk import gelu_moments
from support.oracles.infinite_ntk import gram as oracle_gram

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "infinite_ntk.json").read_text())
HAS_NUMBA = find_spec("numba") is not None
ENGINES = ("fused", "torch") if HAS_NUMBA else ("torch",)
needs_numba = pytest.mark.skipif(not HAS_NUMBA, reason="needs Numba (the extra [ntk])")
if not HAS_NUMBA:  # then torch computes, and says so
    pytestmark = pytest.mark.filterwarnings("ignore:InfiniteNTK runs on plain torch")


def paper_network():
    return nn.Sequential(
        nn.Conv2d(1, 1, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(1, 1, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(1, 1),
    )  # fmt: skip


def images(n, channels=1, size=8, seed=0, dtype=np.float64):
    random = np.random.default_rng(seed)
    return random.standard_normal((n, channels, size, size)).astype(dtype)


GOLDEN_LAYERS = {
    "conv": lambda kernel, stride, same: nn.Conv2d(1, 1, kernel, stride, "same" if same else 0),
    "pool": nn.AvgPool2d,
    "leaky": lambda slope: nn.LeakyReLU(slope),
    "gelu": nn.GELU,
    "dense": lambda: nn.Linear(1, 1),
    "relu": nn.ReLU,
    "flatten": nn.Flatten,
}


def golden_network(name):
    layers = NETWORKS[name]["layers"]
    return nn.Sequential(*(GOLDEN_LAYERS[layer](*options.values()) for layer, options in layers))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["ntk", "nngp"])
@pytest.mark.parametrize("name", NETWORKS)
def test_agrees_with_neural_tangents(name, kind, engine):
    settings_, golden = NETWORKS[name], GOLDEN[name]
    engine = "auto" if name == "gelu" else engine  # which the compiled engine does not have
    kernel = rt.InfiniteNTK(
        golden_network(name), settings_["weight_std"], settings_["bias_std"], kind, engine=engine
    )
    X, expected = np.array(golden["samples"]), np.array(golden[kind])
    # neural-tangents loses half the digits of arccos(1) on the diagonal
    np.testing.assert_allclose(kernel(X), expected, rtol=2e-9)
    np.testing.assert_allclose(kernel(X[:1], X[1:]), expected[:1, 1:], rtol=1e-12)
    np.testing.assert_allclose(kernel(X.astype(np.float32)), expected, rtol=5e-5)


@st.composite
def networks(draw):
    """A random small network, its input's shape, and its standard deviations."""

    def two(low, high):
        return draw(st.integers(low, high)), draw(st.integers(low, high))

    def window(sizes):
        return tuple(min(k, size) for k, size in zip(two(1, 3), sizes, strict=True))

    # One channel seen through one tap correlates perfectly everywhere: there the arccosine loses
    # half the digits, the oracle's too. See test_perfectly_correlated_pixels.
    channels, sizes = draw(st.integers(2, 3)), two(3, 6)
    shape, layers = (channels, *sizes), []
    for _ in range(draw(st.integers(1, 2))):
        padding = draw(st.sampled_from(["same", "valid", (0, 1), (1, 1), (2, 0)]))
        stride = (1, 1) if padding == "same" else two(1, 2)
        dilation = two(1, 2) if padding == "same" else (1, 1)
        layers.append(nn.Conv2d(1, 1, window(sizes), stride, padding, dilation))
        sizes = _size_after(layers[-1], sizes)
        nonlinear = draw(st.sampled_from(["relu", "leaky", "none"]))
        if nonlinear != "none":
            layers.append(nn.ReLU() if nonlinear == "relu" else nn.LeakyReLU(0.3))
        pool = draw(st.sampled_from(["average", "adaptive", "none"]))
        if pool == "average":
            kernel = window(sizes)
            padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
            counted = draw(st.booleans())
            layers.append(nn.AvgPool2d(kernel, two(1, 3), padding, count_include_pad=counted))
        elif pool == "adaptive":
            layers.append(nn.AdaptiveAvgPool2d(draw(st.sampled_from([1, 2, (None, 2), (3, 1)]))))
        sizes = sizes if pool == "none" else _size_after(layers[-1], sizes)
    layers.append(nn.Flatten())
    if draw(st.booleans()):
        layers += [nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)]
    std = draw(st.floats(0.5, 2)), draw(st.sampled_from([0.0, 0.7]))
    return nn.Sequential(*layers), shape, std


def _size_after(layer, sizes):
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that padding an even kernel to the same size is slow
        return tuple(layer(torch.zeros(1, 1, *sizes)).shape[2:])


@given(networks())
def test_any_network_agrees_with_the_literal_oracle(case):
    module, shape, (weight_std, bias_std) = case
    X = np.random.default_rng(1).standard_normal((3, *shape))
    expected = oracle_gram(module, X[:2], X, weight_std=weight_std, bias_std=bias_std)
    for kind, values in zip(("ntk", "nngp"), expected, strict=True):
        for engine in ENGINES:
            kernel = rt.InfiniteNTK(module, weight_std, bias_std, kind, engine=engine)
            scale = np.abs(values).max() + 1e-300
            assert np.abs(kernel(X[:2], X) - values).max() <= 1e-10 * scale
            assert np.abs(kernel(X)[:2] - values).max() <= 1e-10 * scale


def test_perfectly_correlated_pixels():
    module = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    X = images(3, size=3)
    # S(p, q) = x(p) x'(q), so that ReLU halves it where the signs agree and else makes it zero
    products = X.reshape(3, 1, 9, 1) * X.reshape(1, 3, 1, 9)
    exact = np.maximum(products, 0).mean((2, 3)) / 2
    for engine in ENGINES:
        np.testing.assert_allclose(
            rt.InfiniteNTK(module, kind="nngp", engine=engine)(X), exact, rtol=1e-12
        )
        np.testing.assert_allclose(rt.InfiniteNTK(module, engine=engine)(X), exact, rtol=1e-7)


def test_only_needed_pairs_are_computed():
    layers = rt.InfiniteNTK(paper_network())._layers
    first, second = make_plan(layers, (1, 28, 28)).stages[:2]
    # 28 pixels in 14 windows of 2, each meeting itself and its neighbors: (3 * 14 - 2) * 4
    assert [m.outputs for m in first.pull] == [160, 160]
    assert [m.outputs for m in second.pull] == [28, 28]  # 7 windows of 2 x 2 pairs


@pytest.mark.parametrize("module", [
    nn.Sequential(nn.Conv2d(2, 1, 3), nn.AvgPool2d(2), nn.LeakyReLU(-0.5), nn.ReLU(), nn.Flatten()),
    nn.Sequential(nn.Conv2d(2, 1, 3), nn.LeakyReLU(0.5), nn.Flatten(), nn.LeakyReLU(0.4)),
])  # fmt: skip
def test_nngp_is_the_covariance_of_random_networks(module):
    """One layer of 50,000 channels (independent draws), rectified twice: five standard errors."""
    torch.manual_seed(1)
    X = torch.randn(2, 2, 4, 4)
    conv, draws = module[0], 50_000
    wide = nn.Conv2d(2, draws, conv.kernel_size, conv.stride, conv.padding, bias=False)
    nn.init.normal_(wide.weight, std=(2 * conv.kernel_size[0] * conv.kernel_size[1]) ** -0.5)
    with torch.no_grad():
        features = nn.Sequential(wide, *list(module)[1:])(X).reshape(2, draws, -1).double()
    samples = torch.einsum("acp,bcp->abc", features, features) / features.shape[2]
    exact = rt.InfiniteNTK(module, kind="nngp")(X.double())
    error = samples.std(2) / draws**0.5
    assert (error < 0.02).all()
    assert ((samples.mean(2) - exact).abs() < 5 * error).all()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_symmetric_positive_and_repeatable(monkeypatch, engine, dtype):
    X = images(40, dtype=dtype)
    kernel = rt.InfiniteNTK(paper_network(), engine=engine)
    K, rows = kernel(X), kernel(X[:3], X)
    assert K.dtype == dtype
    assert np.array_equal(K, K.T)
    assert np.array_equal(np.diagonal(K), kernel.diag(X))
    assert np.linalg.eigvalsh(K.astype(float)).min() > 0
    # equal samples are perfectly correlated in kernel(A, B) too, to the last digits
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(rows, K[:3], rtol=20 * eps)
    np.testing.assert_allclose(kernel(X, X[:5]), K[:, :5], rtol=20 * eps)
    np.testing.assert_array_equal(kernel(X[:3], X[3:]), rows[:, 3:])
    if engine == "fused":
        monkeypatch.setattr("retarget.kernels.infinite.numba.TASK_NUMBERS", 1)
    monkeypatch.setattr(torch_engine, "NUMBERS_CPU", 40 * 2000)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        parts = kernel(X), kernel(X[:3], X), kernel.diag(X)
    finally:
        torch.set_num_threads(threads)
    for whole, part in zip((K, rows, np.diagonal(K)), parts, strict=True):
        assert np.array_equal(whole, part)


@pytest.mark.parametrize("engine", ENGINES)
def test_zero_images_and_convolutions_that_see_only_padding(engine):
    X = images(3) * np.array([1, 0, 1])[:, None, None, None]
    K = rt.InfiniteNTK(paper_network(), engine=engine)(X)
    assert (K[1] == 0).all()
    assert K[0, 0] > 0
    module = nn.Sequential(nn.Conv2d(1, 1, 1, stride=2, padding=1), nn.ReLU(), nn.Flatten())
    kernel = rt.InfiniteNTK(module, bias_std=2.0, engine=engine)
    np.testing.assert_allclose(kernel(images(2, size=1)), np.full((2, 2), 2.0))  # S = 4, halved


def test_libraries_types_no_samples_and_progress(monkeypatch, capsys):
    X = torch.from_numpy(images(4))
    kernel = rt.InfiniteNTK(paper_network())
    K = kernel(X)
    assert isinstance(K, torch.Tensor)
    np.testing.assert_array_equal(K.numpy(), kernel(X.numpy()))
    half = kernel(X.half())
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.double(), K, rtol=2e-3, atol=0)
    assert kernel(X.float(), X).dtype == torch.float64
    empty = kernel(X[:0]), kernel(X[:0], X), kernel.diag(X[:0])
    assert [part.shape for part in empty] == [(0, 0), (0, 4), (0,)]
    monkeypatch.setattr("retarget.progress.PATIENCE", -1.0)
    rt.InfiniteNTK(paper_network(), progress=True)(X)
    assert "infinite-width kernel" in capsys.readouterr().err


def test_vectors_images_and_nested_layers():
    X = images(4)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))
    wide = nn.Sequential(nn.Linear(64, 7, bias=False), nn.ReLU(), nn.Linear(7, 3))
    K = rt.InfiniteNTK(wide)(X.reshape(4, -1))
    # as images the mean runs over channels and then pixels, as vectors over features: the same
    np.testing.assert_allclose(rt.InfiniteNTK(flat)(X), K, rtol=1e-12)
    np.testing.assert_array_equal(rt.InfiniteNTK(flat)(X.reshape(4, -1)), K)

    X, relu = np.random.default_rng(0).standard_normal((3, 5)), nn.ReLU()
    one, two, three = (nn.Linear(1, 1) for _ in range(3))
    again = nn.Sequential(one, relu, two, relu, three)  # one module in two places
    apart = nn.Sequential(one, nn.ReLU(), two, nn.ReLU(), three)
    assert np.array_equal(rt.InfiniteNTK(again)(X), rt.InfiniteNTK(apart)(X))
    with pytest.raises(InvalidInputError, match=r"'2\.0' is the same .* layer '0'"):
        rt.InfiniteNTK(nn.Sequential(one, relu, nn.Sequential(one)))

    module = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU(), nn.Linear(1, 1)))
    K = rt.InfiniteNTK(module, {"0": 2.0, "1.1": 3.0}, {"1.1": 0.5}, "nngp")(X)
    np.testing.assert_allclose(K, 36 * rt.InfiniteNTK(module, kind="nngp")(X) + 0.25)


@pytest.mark.parametrize("last", [nn.LeakyReLU(0.1), nn.GELU()])
def test_described_and_made_again(last):
    module = nn.Sequential(*paper_network(), last, nn.Identity(), nn.Linear(1, 1))
    kernel = rt.InfiniteNTK(module, 1.2, {"0": 0.3}, "nngp")
    again = kernel_from_dict(json.loads(json.dumps(kernel.to_dict())))
    assert again.to_dict() == kernel.to_dict()
    assert repr(again) == repr(kernel)
    X = images(3)
    assert np.array_equal(again(X), kernel(X))


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize(
    ("device", "name", "message"),
    [
        pytest.param("cpu", "numba", r"Numba .*\[ntk\]", marks=needs_numba),
        pytest.param("cuda", "cuda", "Triton .*reinstall it", marks=[needs_cuda, pytest.mark.gpu]),
    ],
)
def test_falls_back_to_torch_with_one_warning(monkeypatch, device, name, message):
    X = torch.from_numpy(images(3)).to(device)
    expected = rt.InfiniteNTK(paper_network(), engine="torch")(X)
    monkeypatch.setitem(sys.modules, f"retarget.kernels.infinite.{name}", None)
    monkeypatch.delattr(f"retarget.kernels.infinite.{name}", raising=False)
    ntk._fused_engine.cache_clear()
    try:
        kernel = rt.InfiniteNTK(paper_network())
        with pytest.warns(RuntimeWarning, match=f"runs on plain torch.*{message}"):
            first = kernel(X)
        assert torch.equal(first, expected)
        kernel(X)  # warns no more: a second warning would be an error here
    finally:
        ntk._fused_engine.cache_clear()


@pytest.mark.parametrize(("block", "lower"), [(1, False), (4, False), (1, True), (4, True)])
@pytest.mark.parametrize(("rows", "pairs"), [(5, 10), (5, 500), (37, 10**6), (300, 900), (37, 0)])
def test_tiles_cover_the_matrix_once(rows, pairs, lower, block):
    columns = rows if lower else 41
    seen = np.zeros((rows, columns), dtype=int)
    for tile in torch_engine.tiles(rows, columns, lower, pairs, block):
        assert tile.top % block == tile.first % block == 0
        assert (tile.bottom - tile.top) * (tile.last - tile.first) <= max(pairs, block**2)
        seen[tile.top : tile.bottom, tile.first : tile.last] += 1
    wanted = np.tri(rows, columns, dtype=int) if lower else 1
    assert np.array_equal(seen * wanted, np.ones_like(seen) * wanted)


@pytest.mark.parametrize("overlap", [False, True])
def test_launches_are_the_plan(overlap):
    """The kernel's tables read literally, against the plan's maps: the linear part of a stage."""
    pool = nn.AvgPool2d(2, 1, 1, count_include_pad=False) if overlap else nn.AvgPool2d((3, 2))
    module = nn.Sequential(
        nn.Conv2d(1, 1, 2), nn.ReLU(), nn.Conv2d(1, 1, 3, 2, 1), nn.ReLU(), pool, nn.Flatten()
    )
    plan = make_plan(rt.InfiniteNTK(module, 1.3, 0.5)._layers, (1, 9, 8))
    stage = plan.stages[1]
    vertical, horizontal = stage.pull
    S = torch.rand(vertical.inputs, horizontal.inputs, dtype=torch.float64)
    program = torch_engine.make_program(plan, S.dtype, S.device).stages[1]
    pulled = torch_engine._apply(S[..., None, None], program.pull) + stage.bias_variance
    expected = torch_engine._apply(pulled, program.push)[..., 0, 0]

    everything = cuda.make_program(plan, S.dtype, S.device)
    launches = everything.stages[1]
    assert everything.numbers_per_pair == S.numel()  # what the first stage stores
    assert len(launches.launches) == 1 + overlap
    rows, columns = stage.diagonals
    same = pulled[rows[:, None], columns][..., 0, 0]
    torch.testing.assert_close(run_tables(launches.variances, S), same)
    for launch in launches.launches:
        S = run_tables(launch, S)
    torch.testing.assert_close(S, expected)


def run_tables(launch, S):
    """What the kernel does, without the rectifier."""
    (targets, sources, taps, shares, scales), across = launch.rows, launch.columns
    out, stored = S.new_zeros(launch.targets), S.flatten()
    for row, column in np.ndindex(*launch.targets):
        for y in range(*targets[row]):
            for x in range(*across[0][column]):
                places = (
                    taps[slice(*sources[y, :2]), None, 0]
                    + across[2][slice(*across[1][x, :2]), 0]
                )  # fmt: skip
                total = stored[places.long()].sum() * scales[y] * across[4][x]
                out[row, column] += total + launch.numbers[0]
        out[row, column] *= shares[row] * across[3][column]
    return out


CUDA_NETWORKS = {
    "paper": paper_network(),
    "overlapping windows, uneven taps": nn.Sequential(
        nn.Conv2d(1, 1, (3, 2), (1, 2), (1, 0)), nn.LeakyReLU(0.2),
        nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.Conv2d(1, 1, 2), nn.ReLU(),
        nn.Flatten(), nn.Linear(1, 1),
    ),
    "global pooling": nn.Sequential(
        nn.Conv2d(1, 1, 3, padding=2, dilation=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1),
    ),
    "windows of different sizes": nn.Sequential(
        nn.Conv2d(1, 1, 3), nn.ReLU(), nn.AdaptiveAvgPool2d((4, None)), nn.Flatten()
    ),
    "pooling first, rectified twice": nn.Sequential(
        nn.AvgPool2d(2), nn.Conv2d(1, 1, 2), nn.AvgPool2d(2), nn.LeakyReLU(-0.5), nn.ReLU(),
        nn.Flatten(),
    ),
    "dense": nn.Sequential(
        nn.Flatten(), nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1), nn.LeakyReLU(0.1),
        nn.Linear(1, 1),
    ),
    "gelu": nn.Sequential(
        nn.Conv2d(1, 1, 3, padding=1), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(1, 1)
    ),
}  # fmt: skip


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["ntk", "nngp"])
@pytest.mark.parametrize("name", CUDA_NETWORKS)
def test_cuda_agrees_with_cpu(name, kind, engine):
    engine = "torch" if name == "gelu" else engine  # which the compiled engine does not have
    X = torch.from_numpy(images(70, channels=2))
    expected = rt.InfiniteNTK(CUDA_NETWORKS[name], 1.2, 0.3, kind)(X)
    kernel = rt.InfiniteNTK(CUDA_NETWORKS[name], 1.2, 0.3, kind, engine=engine)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 5e-6)):
        there = X.to(dtype).cuda()
        for K, part in (
            (kernel(there), expected),
            (kernel(there[:3], there), expected[:3]),
            (kernel.diag(there), expected.diagonal()),
        ):
            assert (K.cpu().double() - part).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [name for name in CUDA_NETWORKS if name != "gelu"])
def test_cuda_repeats_itself_and_finds_equal_samples(name, dtype, monkeypatch):
    X = torch.from_numpy(images(150)).to(dtype).cuda()
    kernel = rt.InfiniteNTK(CUDA_NETWORKS[name])
    K = kernel(X)
    assert torch.equal(K, K.mT)
    assert torch.equal(K, kernel(X))
    assert torch.equal(K.diagonal(), kernel.diag(X))
    rows = kernel(X[40:90], X)
    assert (rows - K[40:90]).abs().max() <= 20 * torch.finfo(dtype).eps * K.max()
    # to the last bit: an equal sample is found perfectly correlated
    assert torch.equal(rows[:, 40:90].diagonal(), K.diagonal()[40:90])
    monkeypatch.setattr(torch_engine, "NUMBERS_ELSEWHERE", 1)  # the smallest tiles
    assert torch.equal(K, kernel(X))
    assert torch.equal(K.diagonal(), kernel.diag(X))


@pytest.mark.gpu
@needs_cuda
def test_cuda_without_memory_takes_plain_torch(monkeypatch):
    X = torch.from_numpy(images(5)).cuda()
    expected = rt.InfiniteNTK(paper_network(), engine="torch")(X)
    monkeypatch.setattr("retarget.kernels.infinite.cuda.fits", lambda program, like: False)
    assert torch.equal(rt.InfiniteNTK(paper_network())(X), expected)


DENSE = nn.Linear(1, 1), nn.ReLU(), nn.Linear(2, 1)


@pytest.mark.parametrize(("layers", "options", "message"), [
    ([nn.Linear(1, 1), nn.Sequential(nn.Tanh())], {},
     r"layer '1\.0', Tanh\(\), has no infinite-width kernel here"),
    ([nn.Conv2d(2, 2, 3, groups=2)], {}, r"layer '0', Conv2d.*expected groups=1"),
    ([nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")], {}, "padding_mode='zeros'"),
    ([nn.AvgPool2d(2, ceil_mode=True)], {}, "ceil_mode=False"),
    ([nn.AvgPool2d(2, divisor_override=3)], {}, "divisor_override=None"),
    ([nn.AvgPool2d(2, padding=2)], {}, "at most half the kernel"),
    ([nn.Flatten(2)], {}, "start_dim=1"),
    ([nn.Flatten(), nn.Linear(1, 1), nn.Conv2d(1, 1, 3)], {},
     r"layer '2' \(Conv\) comes after the images were flattened"),
    ([nn.Conv2d(1, 1, 3), nn.Linear(1, 1)], {}, r"layer '1' \(Linear\) acts on images"),
    ([nn.ReLU(), nn.Linear(1, 1)], {}, r"layer '0' \(ReLU or LeakyReLU\).*not Gaussian"),
    ([nn.Conv2d(1, 1, 3), nn.ReLU(), nn.AvgPool2d(2), nn.ReLU(), nn.Flatten()], {},
     r"layer '3'.*not Gaussian"),
    ([nn.Flatten()], {}, "no Linear and no Conv2d"),
    ([], {}, "no Linear and no Conv2d"),
    ([nn.Conv2d(1, 1, 3), nn.ReLU()], {}, "ends in images, with layer '1'"),
    ([nn.Linear(1, 1), nn.GELU("tanh")], {}, "expected approximate='none'"),
    ([nn.GELU(), nn.Linear(1, 1)], {}, r"layer '0' \(GELU\) .* not Gaussian"),
    ([nn.Linear(1, 1), nn.ReLU(), nn.GELU()], {}, r"layer '2' \(GELU\) acts on values"),
    ([nn.Linear(1, 1), nn.GELU(), nn.ReLU()], {}, r"layer '2' \(ReLU or LeakyReLU\) acts"),
    (DENSE, {"kind": "cntk"}, "kind is 'cntk'; expected 'ntk' or 'nngp'"),
    (DENSE, {"engine": "jax"}, "engine is 'jax'; expected 'auto'"),
    (DENSE, {"weight_std": 0.0}, "weight_std is 0.0; expected a positive"),
    (DENSE, {"bias_std": -1.0}, r"bias_std is -1.0"),
    (DENSE, {"weight_std": {"0": -1.0}}, r"weight_std\['0'\] is -1.0"),
    (DENSE, {"bias_std": {"1": 1.0}}, "bias_std names '1'; .*'0', '2'"),
])  # fmt: skip
def test_refuses_networks_without_such_a_kernel_and_options(layers, options, message):
    with pytest.raises(InvalidInputError, match=message):
        rt.InfiniteNTK(nn.Sequential(*layers), **options)


def test_wrong_modules_samples_and_devices():
    with pytest.raises(InvalidTypeError, match=r"module is a Linear"):
        rt.InfiniteNTK(nn.Linear(1, 1))
    dense = rt.InfiniteNTK(nn.Sequential(nn.Linear(1, 1)))
    fused = rt.InfiniteNTK(nn.Sequential(nn.Linear(1, 1)), engine="fused")
    gelu = rt.InfiniteNTK(nn.Sequential(nn.Linear(1, 1), nn.GELU()), engine="fused")
    flat = rt.InfiniteNTK(nn.Sequential(nn.Flatten(), nn.Linear(1, 1)))
    convolutional = rt.InfiniteNTK(paper_network())
    nowhere = torch.zeros(2, 3, 1, 1, device="meta")
    for compute, samples, message in (
        (convolutional, [np.zeros((2, 784))], r"A has shape \(2, 784\); expected images"),
        (dense, [images(2)], r"expected \(n, features\), as this network"),
        (flat, [np.zeros((2, 3, 4))], r"\(2, 3, 4\); expected \(n, features\) or"),
        (flat, [np.zeros((2, 0))], "expected at least one feature"),
        (convolutional, [images(2, size=2)], r"shrunk to \(1, 1\) pixels before layer '5'"),
        (dense._gram, [torch.zeros(2, 3), nowhere], "A is on cpu, but B is on meta"),
        (fused._program, [nowhere], "engine is 'fused', which runs on the CPU and on CUDA"),
        (gelu, [np.ones((2, 3))], "'fused', which has no GELU"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            compute(*samples)


@needs_numba
def test_compiled_loops_must_prove_themselves(monkeypatch):
    from retarget.kernels.infinite import numba as numba_engine

    monkeypatch.setattr("retarget.kernels.infinite.sweep.spread", lambda *arguments: None)
    with pytest.raises(RuntimeError, match="a compiled loop gave wrong numbers"):
        numba_engine.probe()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("free", "what"), [(10_000, "covariances between all pixels"), (10, "the kernel matrix needs")]
)
def test_refuses_what_is_beyond_memory(monkeypatch, engine, free, what):
    monkeypatch.setattr("retarget.arrays.free_memory", lambda device: free)
    kernel, X = rt.InfiniteNTK(paper_network(), engine=engine), images(3, size=12)
    for samples in ((X,), (X, X)):
        with pytest.raises(StreamTooLargeError, match=what):
            kernel(*samples)


@given(left=st.floats(0.05, 9), right=st.floats(0.05, 9), correlation=st.floats(-0.99, 0.99))
def test_gelu_is_its_integral(left, right, correlation):
    """E[f f'] and E[df df'] against quadrature, through a network with one hidden layer."""
    x = np.array([[math.sqrt(2 * left), 0.0]])
    y = math.sqrt(2 * right) * np.array([[correlation, math.sqrt(1 - correlation**2)]])
    network = nn.Sequential(nn.Linear(2, 1), nn.GELU(), nn.Linear(1, 1))
    covariance = (x @ y.T).item() / 2
    f, df = gelu_moments(left, right, covariance)
    assert rt.InfiniteNTK(network, kind="nngp")(x, y).item() == pytest.approx(f, abs=1e-10)
    assert rt.InfiniteNTK(network)(x, y).item() == pytest.approx(covariance * df + f, abs=1e-10)
