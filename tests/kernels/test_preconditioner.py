"""The kernel J P J^T: against the Jacobian, and steps by hand with a P that stands still."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import retarget as rt
from retarget import NetworkCorrector
from retarget.errors import InvalidInputError, InvalidTypeError
from support.networks import Network, parameter
from support.oracles.empirical_ntk import close, jacobian, jacobian_gram, products
from support.small_bert import SmallBert, sentences

# no test is about how large targets are
pytestmark = pytest.mark.filterwarnings("ignore::retarget.errors.LargeTargetsWarning")


def mlp():
    """Every kind of rule, and a parameter without."""

    def run(m, x):
        x = torch.tanh(m.norm(m.conv(x))).flatten(1)
        return m.out(x) * torch.exp(-m.bend.square().sum())

    parts = {"bend": parameter(3), "conv": nn.Conv2d(1, 2, 2), "norm": nn.GroupNorm(1, 2)}
    return Network(run, **parts, out=nn.Linear(8, 3))


def network(kind="mlp"):
    torch.manual_seed(5)
    if kind == "bert":
        return SmallBert(layers=1).double().eval(), sentences(5)
    return mlp().double(), {"x": torch.randn(5, 1, 3, 3, dtype=torch.float64)}


def random_factors(module, single):
    shapes = {name: () if single else value.shape for name, value in module.named_parameters()}
    return {name: torch.rand(shape, dtype=torch.float64) for name, shape in shapes.items()}


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("kind", ["bert", "mlp"])
def test_it_is_the_jacobian_weighted(kind, single):
    module, X = network(kind)
    P = random_factors(module, single)
    J = jacobian(module, X, weights=P)
    for outputs, mode in itertools.product(("mean", "full", 2), ("structured", "jacobian")):
        kernel = rt.EmpiricalNTK(module, outputs, preconditioner=P, mode=mode)
        expected = products(J, J, outputs)
        close(kernel(X), expected)
        close(kernel.diag(X), expected.diagonal())
        if outputs != "full":
            F = kernel.features(X)
            close(F @ F.T, expected)


def stepped(make, module, X, steps=3):
    optimizer = make(module)
    for step in range(steps):
        optimizer.zero_grad()
        (module(**X) - step).square().sum().backward()
        optimizer.step()
    return optimizer


def groups(module, **options):
    values = list(module.parameters())
    return [{"params": values[:2]}, {"params": values[2:], **options}]


OPTIMIZERS = {
    "Adam": lambda m: torch.optim.Adam(m.parameters(), 0.01, betas=(0.7, 0.95), eps=1e-3),
    "Adam, amsgrad": lambda m: torch.optim.Adam(m.parameters(), 0.01, amsgrad=True),
    "AdamW": lambda m: torch.optim.AdamW(
        groups(m, lr=0.02, weight_decay=0.1), 0.01, weight_decay=0.2
    ),
    "RMSprop": lambda m: torch.optim.RMSprop(m.parameters(), 0.01, alpha=0.8, eps=1e-2),
    "RMSprop, centered": lambda m: torch.optim.RMSprop(m.parameters(), 0.01, centered=True),
    "SGD": lambda m: torch.optim.SGD(groups(m, lr=0.03), 0.01, momentum=0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_what_the_optimizer_multiplies_gradients_with(name):
    """A step with the second moments held still moves the weights by lr * P * gradient."""
    module, X = network()
    optimizer = stepped(OPTIMIZERS[name], module, X)
    kernel = rt.EmpiricalNTK(module, preconditioner=optimizer)
    P, rate = kernel.factors(), 0.01
    if "SGD" not in name:
        # the same optimizer, whose moments neither fade nor grow: it steps by lr * P * gradient
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.0
            if "betas" in group:
                group["betas"] = (0.0, group["betas"][1])
        before = {key: value.detach().clone() for key, value in module.named_parameters()}
        optimizer.zero_grad()
        (1e-6 * module(**X).sum()).backward()  # so small that it changes no moment
        gradients = {key: value.grad.clone() for key, value in module.named_parameters()}
        for state in optimizer.state.values():
            second = optimizer.param_groups[0].get("betas", (0, 0.99))[1]
            alpha = optimizer.param_groups[0].get("alpha", second)
            for key in ("exp_avg_sq", "square_avg", "grad_avg"):
                if key in state:
                    state[key] /= alpha  # which the step takes away again
            if "step" in state and "exp_avg_sq" in state:  # and its bias correction is one older
                steps = float(state["step"])
                ratio = (1 - second ** (steps + 1)) / (1 - second**steps)
                state["exp_avg_sq"] *= ratio
                if "max_exp_avg_sq" in state:
                    state["max_exp_avg_sq"] *= ratio
        optimizer.step()
        for key, value in module.named_parameters():
            moved = (before[key] - value.detach()) / rate
            torch.testing.assert_close(moved, P[key] * gradients[key], rtol=1e-5, atol=1e-12)
    else:
        assert [float(P[key]) for key in P] == pytest.approx([1.0] * 2 + [3.0] * (len(P) - 2))


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_preconditioned_steps_are_those_of_the_kernel(outputs):
    """Step by step by hand, with AdamW's P held still and its decoupled decay, to 1e-10.

    Each output has a kernel of its own; their mean, the default, is exact for one output only.
    """
    torch.manual_seed(0)
    module = nn.Linear(6, outputs).double()
    X, Y = torch.randn(20, 6).double(), torch.randn(20, outputs).double()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.02, weight_decay=0.3)
    stepped(lambda _: optimizer, module, {"input": X[:4]})
    kernel = rt.EmpiricalNTK(module, outputs="full", preconditioner=optimizer)
    mean = rt.EmpiricalNTK(module, preconditioner=optimizer)(X)
    P, lr, decay, batch = kernel.factors(), 0.02, 0.3, 3
    with torch.no_grad():
        for value in module.parameters():
            value.zero_()
    # outputs of a linear model do not share parameters: each has a kernel of its own
    K = kernel(X).view(20, outputs, 20, outputs)
    learner = rt.SGD(lr, batch, weight_decay=decay, reduction="sum")
    for start in range(0, 20, batch):
        rows = slice(start, start + batch)
        module.zero_grad()
        (0.5 * (module(X[rows]) - Y[rows]).square().sum()).backward()
        with torch.no_grad():
            for name, value in module.named_parameters():
                value.mul_(1 - lr * decay).sub_(lr * P[name] * value.grad)
    learned = module(X).detach()
    for k in range(outputs):
        assert outputs == 1 or float(K[:, k, :, k - 1].abs().max()) == 0
        A = rt.online_coefficients(K[:, k, :, k], Y[:, [k]], learner)
        close(K[:, k, :, k] @ A, learned[:, [k]])
    off = float((mean @ rt.online_coefficients(mean, Y, learner) - learned).norm() / learned.norm())
    assert off < 1e-10 if outputs == 1 else off > 0.05
    page = Path(__file__).parents[2] / "docs/training.md"
    (row,) = (line for line in page.read_text().splitlines() if line.startswith("| Adam, AdamW"))
    assert "exact for one output while the second moments do not change" in row


def test_the_corrector_keeps_it_current():
    module, X = network()
    Y, learner = torch.randn(5, 3, dtype=torch.float64), rt.SGD(0.01)
    optimizer = stepped(OPTIMIZERS["AdamW"], module, X)
    corrector = NetworkCorrector(module, learner, 0.5, 1, preconditioner=optimizer)
    first = corrector.correct(X, Y)
    K = jacobian_gram(module, X, X, weights=corrector.kernel.factors())
    torch.testing.assert_close(first, rt.iterative_targets(K, Y, learner, 0.5, 1))
    corrector.trust()
    stepped(lambda _: optimizer, module, X, steps=2)
    later = {"x": X["x"] + 1}
    whole = {"x": torch.cat([X["x"], later["x"]])}
    P = rt.EmpiricalNTK(module, preconditioner=optimizer).factors()
    K = jacobian_gram(module, whole, whole, weights=P)
    expected = rt.iterative_targets(K, torch.cat([Y, Y]), learner, 0.5, 1)
    torch.testing.assert_close(corrector.correct(later, Y), expected[5:])
    with pytest.raises(InvalidInputError, match="refresh is 'never'"):
        NetworkCorrector(module, learner, 0.5, 1, refresh="never", preconditioner=optimizer)


def test_features_keep_their_preconditioner():
    module, X = network()
    optimizer = stepped(OPTIMIZERS["Adam"], module, X)
    kernel = rt.EmpiricalNTK(module, preconditioner=optimizer)
    ridge = rt.StreamingRidge(kernel, 1.0, features=32).learn(X["x"], torch.ones(5).double())
    before = ridge.predict(X["x"])
    stepped(lambda _: optimizer, module, X)
    assert torch.equal(ridge.predict(X["x"]), before)


@pytest.mark.parametrize(("make", "error", "message"), [
    (lambda m: torch.optim.Adam(m.parameters()), InvalidInputError, "no step on bend yet"),
    (lambda m: torch.optim.SGD(m.out.parameters(), 0.1), InvalidInputError, "not hold the .* bend"),
    (lambda m: torch.optim.Adam(m.parameters(), weight_decay=0.1), InvalidInputError,
     "Adam adds weight_decay=0.1"),
    (lambda m: torch.optim.RMSprop(m.parameters(), weight_decay=0.1), InvalidInputError,
     "RMSprop adds weight_decay"),
    (lambda m: torch.optim.AdamW(groups(m, lr=0.1), 0.01, weight_decay=0.1), InvalidInputError,
     r"in parameter group 1 lr \* weight_decay is 0.01, but 0.001 in group 0"),
    (lambda m: torch.optim.SGD(m.parameters(), 0.1, maximize=True), InvalidInputError,
     "maximize is set"),
    (lambda m: torch.optim.SGD(m.parameters(), 0.0), InvalidInputError, "lr is 0.0 in parameter"),
    (lambda m: {"bend": 1.0}, InvalidInputError, "no factor for the parameter conv.weight"),
    (lambda m: random_factors(m, True) | {"bend": torch.ones(2)}, InvalidInputError,
     r"factors for bend have shape \(2,\)"),
    (lambda m: random_factors(m, True) | {"bend": -1.0}, InvalidInputError,
     "bend hold a number that is negative"),
    (lambda m: 0.1, InvalidTypeError, "is 0.1; expected a torch optimizer"),
    (lambda m: torch.optim.Adagrad(m.parameters()), InvalidTypeError, "is an Adagrad; expected"),
])  # fmt: skip
def test_what_has_no_description_is_refused(make, error, message):
    module, X = network()
    with pytest.raises(error, match=message):
        rt.EmpiricalNTK(module, preconditioner=make(module))(X["x"])


def test_a_number_as_a_factor():
    """Not those of torch's default type."""
    module, X = nn.Linear(2, 1, bias=False).double(), np.array([[1.0, 2.0], [3.0, 0.5]])
    kernel = rt.EmpiricalNTK(module, preconditioner={"weight": 0.1})
    np.testing.assert_allclose(kernel(X), 0.1 * X @ X.T, rtol=1e-15)
