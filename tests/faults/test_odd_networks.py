"""Networks that no kernel can be computed of: an error of ours that names the reason."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt
from retarget.errors import (
    InvalidInputError,
    InvalidTypeError,
    NotPositiveDefiniteError,
    RetargetError,
    TrainingDivergedError,
)

pytestmark = [
    pytest.mark.faults,
    pytest.mark.filterwarnings("ignore::UserWarning:torch.nn.modules.lazy"),
    pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning"),
]

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(8, 3)), RNG.normal(size=(8, 2))
LEARNER = rt.SGD(0.01, batch_size=2, reduction="sum")


def mlp(dtype=torch.float64, factor=1.0, bad=None):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).to(dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter *= factor
        if bad is not None:
            module[2].weight[1, 5] = bad
    return module


class Own(nn.Module):
    """Parameters and a forward pass of one's own."""

    def __init__(self, weight, forward):
        super().__init__()
        self.weight, self._run = nn.Parameter(weight), forward

    def forward(self, x):
        return self._run(x, self.weight)


def mean_free():
    layers = nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)
    return nn.Sequential(*layers).double()


def half_loaded():
    return nn.Sequential(nn.Linear(3, 8).double(), nn.Linear(8, 2, device="meta").double())


COMPLEX = torch.ones(3, 2, dtype=torch.complex128)
REAL = torch.ones(3, 1, dtype=torch.float64)
BEFORE = "use those from before its training diverged"
NETWORKS = {
    "NaN": (lambda: mlp(bad=np.nan), f"2.weight holds nan; expected finite weights: {BEFORE}"),
    "infinite": (lambda: mlp(bad=np.inf), f"2.weight holds inf; expected finite weights: {BEFORE}"),
    "grown": (
        lambda: mlp(factor=1e160),
        "outputs are not finite, though its weights and samples are, as if they overflowed float64",
    ),
    "lazy": (
        lambda: nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2)),
        "0.weight has no shape yet, because its layer is lazy; call the module once",
    ),
    "complex": (
        lambda: Own(COMPLEX, lambda x, w: (x.to(w.dtype) @ w).real),
        "weight has dtype complex128; expected real parameters: keep real and imaginary parts",
    ),
    "batch normalization in training": (
        lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double(),
        r"layer '1' \(BatchNorm1d\) normalizes by the batch.*; call module.eval\(\) first",
    ),
    "batch normalization without statistics": (
        lambda: mean_free().eval(),
        r"1' \(BatchNorm1d\) normalizes .*; expected running .*: make it with track_running_sta",
    ),
    "no outputs": (
        lambda: Own(REAL, lambda x, w: (x @ w)[:, :0]),
        r"returned torch.float64 of shape \(., 0\) for . samples; .*, with c of 1 or|0 outputs",
    ),
    "eight bits": (
        lambda: nn.Linear(3, 2).to(torch.float8_e4m3fn),
        "returned torch.float8_e4m3fn of shape .*: wrap it in a module that converts or reshapes",
    ),
    "whole numbers": (
        lambda: Own(REAL, lambda x, w: (x @ w).long()),
        "returned torch.int64 of shape .*: wrap it in a module that converts or reshapes them",
    ),
    "attention to samples of another size": (
        lambda: Own(REAL, lambda x, w: nn.MultiheadAttention(4, 1).double()(x, x, x)[0] * w[0]),
        r"does not take samples of shape \(3,\) .*was expecting embedding dimension of 4",
    ),
    "no forward pass": (
        lambda: nn.ModuleList([nn.Linear(3, 2).double()]),
        r"does not take samples .*Module \[ModuleList\] is missing the required",
    ),
    "complex outputs": (
        lambda: Own(REAL, lambda x, w: torch.complex(x @ w, x @ w)),
        "returned torch.complex128 of shape",
    ),
    "flat": (
        lambda: Own(REAL, lambda x, w: (x @ w)[:, 0]),
        r"returned torch.float64 of shape \((\d),\) for \1 samples; expected real outputs",
    ),
    "single": (
        lambda: Own(REAL, lambda x, w: (x @ w).sum()),
        r"returned torch.float64 of shape \(\) for . samples; expected real outputs",
    ),
    "meta": (
        lambda: nn.Linear(3, 2, device="meta"),
        "module's weight is on the meta device, which holds no numbers; load the weights first",
    ),
    "cpu and meta": (half_loaded, "module's 1.weight is on the meta device, which holds no numbe"),
    "other samples": (
        lambda: nn.Linear(5, 2).double(),
        r"does not take samples of shape \(3,\) and dtype float64 \(.*mat1 and mat2 .*\); expected",
    ),
}


def corrected(network, **options):
    return rt.NetworkCorrector(network, LEARNER, 1.0, 8, **options).correct(X, Y)


OBJECTS = {
    "EmpiricalNTK": lambda m: rt.EmpiricalNTK(m)(X),
    "EmpiricalNTK, Jacobian": lambda m: rt.EmpiricalNTK(m, mode="jacobian").diag(X),
    "EmpiricalNTK, features": lambda m: rt.EmpiricalNTK(m).features(X),
    "EmpiricalNTK, two sets": lambda m: rt.EmpiricalNTK(m)(X, X[:6]),
    "TangentLearner": lambda m: rt.TangentLearner(m, 1.0, 16).learn(X, Y),
    "NetworkCorrector": corrected,
    "ClosedLoopCorrector": lambda m: rt.ClosedLoopCorrector(m, LEARNER, 1.0, 16, 8, 0).correct(
        X, Y
    ),
    "StreamingRidge": lambda m: rt.StreamingRidge(m, 1.0).learn(X, Y),
    "StreamingRidge, tangents": lambda m: rt.StreamingRidge(rt.EmpiricalNTK(m), 1.0).learn(X, Y),
    "TargetCorrector": lambda m: rt.TargetCorrector(rt.EmpiricalNTK(m), LEARNER, 1.0, 4).correct(
        X, Y
    ),
    "TargetCorrector, bounded": lambda m: rt.TargetCorrector(
        rt.EmpiricalNTK(m), LEARNER, 1.0, 4, features=16
    ).correct(X, Y),
    "ShiftTracker": lambda m: rt.ShiftTracker(rt.EmpiricalNTK(m), LEARNER, 1.0).update(X, Y),
    "CorrectionTracker": lambda m: rt.CorrectionTracker(rt.EmpiricalNTK(m), LEARNER, 1.0).update(
        X, Y
    ),
}
# A network in front of a ridge is not differentiated, and may have complex parameters.
POSSIBLE = {("StreamingRidge", "complex")}
# These learn with a copy in evaluation mode.
POSSIBLE |= {
    (thing, "batch normalization in training") for thing in ("TangentLearner", "StreamingRidge")
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("thing", OBJECTS)
def test_a_network_without_a_kernel(thing, network):
    make, message = NETWORKS[network]
    if (thing, network) in POSSIBLE:
        OBJECTS[thing](make())
        return
    with pytest.raises((InvalidInputError, InvalidTypeError), match=message):
        OBJECTS[thing](make())


@pytest.mark.parametrize("thing", OBJECTS)
def test_weights_that_have_grown_beyond_single_precision(thing):
    """Their products overflow, or nothing of gamma is left beside them."""
    told = (
        r"the kernel overflows float32: the module's weights.*, or accumulate=torch.float64"
        "|the network's kernel is not finite: its weights, or products of them, overflowed"
        r"|use gamma = (\S+) or more, or scale them down: they are as large as \S+e\+1[89], as tho"
    )
    possible = thing in ("EmpiricalNTK, features", "StreamingRidge")  # float64 holds the squares
    if possible:
        OBJECTS[thing](mlp(torch.float32, 1e19))
        return
    with pytest.raises(RetargetError, match=told):
        OBJECTS[thing](mlp(torch.float32, 1e19)).predict(X)


def test_the_advice_for_grown_weights_helps():
    module = mlp(torch.float32, 1e19)
    assert np.isfinite(rt.EmpiricalNTK(module, accumulate=torch.float64)(X)).all()
    learner = rt.TangentLearner(module, 1.0, 16).learn(X, Y)
    with pytest.raises(NotPositiveDefiniteError, match="scale them down") as told:
        learner.predict(X)
    gamma = float(re.search(r"gamma = (\S+) or more", str(told.value)).group(1))
    assert np.isfinite(rt.TangentLearner(module, gamma, 16).learn(X, Y).predict(X)).all()
    lazy = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2)).double()
    lazy(torch.tensor(X))
    assert rt.EmpiricalNTK(lazy)(X).shape == (8, 8)
    loaded = half_loaded().to_empty(device="cpu")
    loaded.load_state_dict(nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2)).state_dict())
    assert rt.EmpiricalNTK(loaded)(X).shape == (8, 8)


def test_a_network_that_breaks_on_the_way():
    module = mlp()
    corrector = rt.NetworkCorrector(module, LEARNER, 1.0, 8)
    corrector.correct(X, Y)
    corrector.trust()
    with torch.no_grad():
        module[0].weight[2, 1] = np.nan
    with pytest.raises(InvalidInputError, match="0.weight holds nan"):
        corrector.correct(X, Y)
    with torch.no_grad():  # its outputs are 0, but not its gradients by the next layer's weights
        module[0].weight.fill_(1e200)
        module[2].weight.zero_()
    with pytest.raises(TrainingDivergedError, match="the network's kernel is not finite"):
        corrector.correct(X, Y)


def test_bfloat16_has_no_numpy():
    module = nn.Linear(3, 2).bfloat16()
    with pytest.raises(InvalidTypeError, match="the result is bfloat16"):
        rt.EmpiricalNTK(module)(X)
    assert rt.EmpiricalNTK(module)(torch.tensor(X)).dtype == torch.bfloat16


def test_samples_prepared_before_learning_or_for_another_learner():
    ridge, fewer = rt.StreamingRidge(rt.Linear(), 1.0), rt.StreamingRidge(rt.Linear(), 1.0)
    early, network = ridge.prepare(X), rt.TangentLearner(mlp(), 1.0, 16)
    with pytest.raises(InvalidInputError, match="nothing .* learned yet"):
        ridge.predict(early)
    ridge.learn(X, Y)
    told = "prepared with 3 features for 0 outputs, but the learner has 3 and 2; call prepare again"
    with pytest.raises(InvalidInputError, match=told):
        ridge.predict(early)
    other = fewer.learn(X[:, :2], Y).prepare(X[:, :2])
    with pytest.raises(InvalidInputError, match="with 2 features for 2 outputs"):
        ridge.predict(other)
    np.testing.assert_array_equal(ridge.predict(ridge.prepare(X)), ridge.predict(X))
    assert len(ridge.prepare(X).like) == 0  # of the samples only their library is kept
    early = network.prepare(X)
    with pytest.raises(InvalidInputError, match="for 0 outputs, .* 16 and 2"):
        network.learn(X, Y).predict(early)


@pytest.mark.parametrize("thing", [each for each in OBJECTS if each != "StreamingRidge"])
@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.jit.script])
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_modules_that_torch_cannot_run_with_other_weights(thing, wrap):
    wrapped = wrap(mlp())
    if thing in ("TangentLearner", "StreamingRidge, tangents", "TargetCorrector, bounded"):
        pytest.skip("runs the module as it is")
    told = "which torch cannot run with other weights; expected the module that it was made from"
    with pytest.raises(InvalidTypeError, match=told):
        OBJECTS[thing](wrapped)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_the_advice_for_wrapped_modules_helps():
    wrapped = nn.DataParallel(mlp())
    with pytest.raises(InvalidTypeError, match="pass module.module"):
        rt.TangentLearner(wrapped, 1.0, 16).learn(X, Y).as_module()
    assert rt.EmpiricalNTK(wrapped.module)(X).shape == (8, 8)
    scripted = rt.StreamingRidge(torch.jit.script(mlp()), 1.0).learn(X, Y)  # needs no other weights
    np.testing.assert_array_equal(
        scripted.predict(X), rt.StreamingRidge(mlp(), 1.0).learn(X, Y).predict(X)
    )


@pytest.mark.parametrize("thing", OBJECTS)
def test_a_network_that_works_in_place(thing):
    """The caller's array shares its memory with the tensor that the network gets."""
    before = X.copy()
    OBJECTS[thing](nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)).double())
    np.testing.assert_array_equal(X, before)
    OBJECTS[thing](Own(REAL.expand(3, 2).clone(), lambda x, w: x.mul_(2) @ w))
    np.testing.assert_array_equal(X, before)


@pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm:FutureWarning")
def test_a_network_that_cannot_be_copied():
    def module(normalized):
        return nn.Sequential(normalized(nn.Linear(3, 2))).double()

    for make in (
        lambda m: rt.TangentLearner(m, 1.0, 16),
        lambda m: rt.StreamingRidge(m, 1.0),
        lambda m: rt.NetworkCorrector(m, LEARNER, 1.0, 8, refresh="never"),
    ):
        with pytest.raises(InvalidTypeError, match="Sequential cannot be copied"):
            make(module(nn.utils.weight_norm))
        make(module(nn.utils.parametrizations.weight_norm))
    lazy = nn.Sequential(nn.Linear(3, 4), nn.LazyBatchNorm1d(), nn.Linear(4, 2))
    with pytest.raises(InvalidTypeError, match="1.weight has no shape yet"):
        rt.NetworkCorrector(lazy, LEARNER, 1.0, 8, refresh="never")


def test_tokens_beyond_the_vocabulary():
    module = nn.Sequential(nn.Embedding(10, 2), nn.Flatten(), nn.Linear(6, 2))
    tokens = np.full((8, 3), 11)
    with pytest.raises(InvalidTypeError, match=r"int64, .* \(index out of range"):
        rt.EmpiricalNTK(module)(tokens)
    with pytest.raises(InvalidTypeError, match=r"linear\(\): argument 'input'"):
        rt.EmpiricalNTK(nn.Linear(3, 2))({"a": tokens})


class Two(nn.Module):
    """Takes two arrays, of which the second is a mask or a weight."""

    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x, weight):
        return self.out(torch.tanh(self.layer(x)) * weight)


SEVERAL = {
    "EmpiricalNTK": lambda m, pair: rt.EmpiricalNTK(m)(pair),
    "EmpiricalNTK, Jacobian": lambda m, pair: rt.EmpiricalNTK(m, mode="jacobian").diag(pair),
    "TangentLearner, learn": lambda m, pair: rt.TangentLearner(m, 1.0, 16).learn(pair, Y),
    "TangentLearner, predict": lambda m, pair: (
        rt.TangentLearner(m, 1.0, 16).learn((X, np.ones((8, 1))), Y).predict(pair)
    ),
    "NetworkCorrector": lambda m, pair: rt.NetworkCorrector(m, LEARNER, 1.0, 8).correct(pair, Y),
    "ClosedLoopCorrector": lambda m, pair: rt.ClosedLoopCorrector(
        m, LEARNER, 1.0, 16, 8, 0
    ).correct(pair, Y),
    "StreamingRidge": lambda m, pair: rt.StreamingRidge(m, 1.0).learn(pair, Y),
}


@pytest.mark.parametrize("thing", SEVERAL)
@pytest.mark.parametrize("row", [0, 5, 7])
def test_one_of_several_arrays_that_holds_nan(thing, row):
    weight = np.ones((8, 1))
    weight[row] = np.nan
    told = rf"[AX]\[1\] holds nan in row {row}; expected numbers: remove or fill in missing values"
    with pytest.raises(InvalidInputError, match=told):
        SEVERAL[thing](Two().double(), (X, weight))
    weight[row] = 1.0
    SEVERAL[thing](Two().double(), (X, weight))  # the advice helps


@pytest.mark.parametrize("thing", SEVERAL)
def test_one_of_several_arrays_that_holds_infinity(thing):
    """It may be a mask; so it is named only where a result is not finite."""
    weight = np.full((8, 1), np.inf)
    told = r"though its weights are, and samples\[1\] holds inf; expected it in masks only"
    with pytest.raises(InvalidInputError, match=told):
        SEVERAL[thing](Two().double(), (X, weight))
    masked = Two().double()
    masked.forward = lambda x, mask: masked.out(torch.tanh(masked.layer(x)) * mask.exp())
    mask = np.where(np.arange(8)[:, None] % 3, 0.0, -np.inf)
    SEVERAL[thing](masked, (X, mask))


@pytest.mark.parametrize(
    "kernel", [lambda k, x: k(x), lambda k, x: k.diag(x), lambda k, x: k(x, x)]
)
def test_infinity_in_samples_that_were_not_tried_first(kernel):
    weight = np.ones((8, 1))
    weight[1] = np.inf  # the first, the fourth and the seventh are tried
    with pytest.raises(InvalidInputError, match=r"samples\[1\] holds inf; .* masks"):
        kernel(rt.EmpiricalNTK(Two().double()), (X, weight))


def test_a_second_set_of_samples_of_another_type():
    kernel, whole = rt.EmpiricalNTK(mlp()), np.ones((4, 3), dtype=int)
    for pair in ((X, whole), (whole, X)):
        with pytest.raises(InvalidTypeError, match="the samples have dtype int64"):
            kernel(*pair)
    assert kernel(X, whole.astype(float)).shape == (8, 4)


def test_outputs_that_drown_the_targets():
    module = nn.Linear(3, 2).double()
    nn.init.constant_(module.bias, 1e95)
    with pytest.raises(InvalidInputError, match="Y minus the network's own outputs"):
        rt.TangentLearner(module, 1.0, 16).learn(X, Y)


class TheirsError(Exception):
    """What a user's own code raises."""


@pytest.mark.parametrize("thing", OBJECTS)
def test_errors_of_users_code_pass(thing):
    """docs/core.md: every other error is ours, as all tests above say."""

    def refuse(x, weight):
        raise TheirsError("not today")

    with pytest.raises(TheirsError, match="not today"):
        OBJECTS[thing](Own(REAL, refuse))


def fails_alone(x, weight):
    """Cannot run on a single sample, which it may need to, as it indexes rows."""
    if len(x) == 1:
        raise RuntimeError("expected several samples")
    return (x @ weight)[torch.arange(len(x))] * weight.norm() * torch.ones(1, 2).double()


def test_a_module_that_takes_no_single_sample():
    with pytest.raises(InvalidInputError, match="does not take samples"):
        rt.EmpiricalNTK(Own(REAL, fails_alone))(X)
