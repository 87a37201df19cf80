"""The same numbers on a CUDA device. Skipped where there is none."""

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt
from retarget.arrays import free_memory
from retarget.engine.response import has_memory
from support.problems import assert_same, core_functions, make_stream

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    # torch says so in its own backward thread, once a process
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]

LEARNERS = [
    rt.SGD(lr=0.3),
    rt.SGD(lr=0.4, batch_size=4, reduction="mean"),
    rt.SGD(lr=0.03, batch_size=2, momentum=0.9, nesterov=True, weight_decay=0.02, reduction="sum"),
]


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("name", core_functions(LEARNERS[0]))
def test_core_equals_the_cpu(name, learner):
    stream = make_stream(150, 3, seed=1)
    function = core_functions(learner, block_size=8)[name]
    expected = function(stream.K, stream.Y)
    got = function(torch.tensor(stream.K).cuda(), torch.tensor(stream.Y).cuda())
    assert got.is_cuda
    assert_same(got.cpu(), expected)


@pytest.mark.parametrize("learner", LEARNERS)
def test_the_discrepancy_and_the_terms_equal_the_cpus(learner):
    stream = make_stream(150, 3, seed=1)
    K, Y = torch.tensor(stream.K).cuda(), torch.tensor(stream.Y).cuda()
    expected = rt.discrepancy(stream.K, stream.Y, stream.Y, learner, 0.7)
    assert rt.discrepancy(K, Y, Y, learner, 0.7) == pytest.approx(expected, rel=1e-10)
    if not has_memory(learner):
        K[9], K[:, 9] = K[8], K[:, 8]  # a singular block among others
        terms = (rt.correction_terms(each, learner, 0.7, 8) for each in (K, K.cpu().numpy()))
        for one, other in zip(*terms, strict=True):
            assert one.online.is_cuda
            assert_same(one.modulation.cpu(), other.modulation)
            assert_same(one.offline.cpu(), other.offline)


def test_many_panels_equal_the_cpu():
    stream = make_stream(2500, 2, seed=2)
    learner = rt.SGD(lr=0.3, batch_size=4, reduction="sum")
    expected = rt.iterative_targets(stream.K, stream.Y, learner, 0.7, 20, 0.1)
    K, Y = torch.tensor(stream.K).cuda(), torch.tensor(stream.Y).cuda()
    assert_same(rt.iterative_targets(K, Y, learner, 0.7, 20, 0.1).cpu(), expected)
    assert 0 < free_memory(K.device) <= torch.cuda.get_device_properties(0).total_memory


@pytest.mark.parametrize("learner", LEARNERS)
def test_streams_equal_the_cpu(learner, tmp_path):
    X = np.random.default_rng(0).normal(size=(90, 5))
    Y = np.sin(X)
    kernel = rt.RBF(2.0)
    expected = rt.iterative_targets(kernel(X), Y, learner, 0.7, 8, 0.1)
    X_cuda, Y_cuda = torch.tensor(X).cuda(), torch.tensor(Y).cuda()
    corrector = rt.TargetCorrector(kernel, learner, 0.7, 8, 0.1)
    tracker = rt.ShiftTracker(kernel, learner, 0.7)
    parts = []
    for start in range(0, 90, 13):
        rows = slice(start, start + 13)
        parts.append(corrector.correct(X_cuda[rows], Y_cuda[rows]))
        tracker.update(X_cuda[rows], Y_cuda[rows])
        corrector.save(tmp_path / "state")
        corrector = rt.TargetCorrector.load(tmp_path / "state", device="cuda")
    parts.append(corrector.flush())
    assert parts[-1].is_cuda
    assert_same(torch.cat(parts).cpu(), expected)
    assert_same(tracker.effective_targets.cpu(), rt.effective_targets(kernel(X), Y, learner, 0.7))


def small_cnn(outputs, dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.ReLU(), nn.AdaptiveAvgPool2d(3),
        nn.LayerNorm(3), nn.Flatten(), nn.Linear(144, outputs),
    ).to(dtype)  # fmt: skip


@pytest.mark.parametrize("outputs", ["mean", "full", 1])
@pytest.mark.parametrize("options", [{}, {"max_memory": 2_000_000}, {"mode": "jacobian"}])
def test_empirical_ntk_equals_the_cpu(outputs, options):
    module, X = small_cnn(3), torch.randn(40, 3, 8, 8, dtype=torch.float64)
    expected = rt.EmpiricalNTK(module, outputs)(X)
    kernel = rt.EmpiricalNTK(module.cuda(), outputs, **options)
    K = kernel(X.cuda())
    assert K.is_cuda
    assert_same(K.cpu(), expected)
    assert_same(kernel(X.numpy()), expected)
    assert_same(kernel.diag(X.cuda()).cpu(), expected.diagonal())
    with pytest.raises(rt.errors.InvalidInputError, match="A is on cpu, but the module is on cuda"):
        kernel(X)


def test_sketches_equal_the_cpu():
    module, X = small_cnn(3), torch.randn(40, 3, 8, 8, dtype=torch.float64)
    expected = rt.EmpiricalNTK(module, sketch=100).features(X)
    assert_same(rt.EmpiricalNTK(module.cuda(), sketch=100).features(X.cuda()).cpu(), expected)


@pytest.mark.parametrize("precision", ["full", "split"])
def test_float32_kernels_keep_their_digits(precision):
    X = torch.randn(300, 3, 8, 8, dtype=torch.float64).cuda()
    exact = rt.EmpiricalNTK(small_cnn(10).cuda())(X)
    module = small_cnn(10, torch.float32).cuda()
    torch.set_float32_matmul_precision("medium")  # which would leave two digits
    try:
        K = rt.EmpiricalNTK(module, precision=precision)(X)
    finally:
        torch.set_float32_matmul_precision("highest")
    size = exact.diagonal().sqrt()
    assert ((K - exact).abs() / (size[:, None] * size)).max() < 5e-6
    assert torch.equal(K, K.T)
