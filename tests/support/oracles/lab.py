"""Every method of the lab as it is defined: one network, one plain loop, torch.optim.SGD.

Nothing is batched, planned ahead or summed up: anchors are kept in a list, the memory is a list,
gradients are taken sample by sample. Only the random numbers are drawn in the lab's order, and the
random features of the closed loop are retarget's.
"""

import copy
from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
import torch

import retarget as rt
from retarget.engine.response import has_memory
from support.oracles import literal
from support.oracles.empirical_ntk import gradients


@dataclass
class Trained:
    """What a run leaves behind, besides the trained module."""

    matrix: list = field(default_factory=list)  # accuracy on each task after each task
    overall: list = field(default_factory=list)  # accuracy on all, after each task
    losses: list = field(default_factory=list)  # mean over the steps of each task


class Plain:
    keeps_order = False

    def start(self, loop):
        self.loop = loop

    def task_start(self, rows):
        pass

    def epoch_start(self, epoch):
        pass

    def targets(self, rows, targets):
        return targets

    def penalty(self):
        return 0.0

    def batch_end(self, rows, outputs):
        pass

    def task_end(self, rows):
        pass


class Smoothed(Plain):
    def __init__(self, amount):
        self.amount = amount

    def targets(self, rows, targets):
        classes = targets.shape[1]
        return targets * (1 - self.amount) + torch.full_like(targets, self.amount / classes)


class Anchored(Plain):
    """EWC: one anchor a task, all kept."""

    def __init__(self, strength):
        self.strength = strength

    def start(self, loop):
        super().start(loop)
        self.anchors = []

    def penalty(self):
        total = 0.0
        for fisher, anchor in self.anchors:
            for f, old, w in zip(fisher, anchor, self.loop.weights, strict=True):
                total = total + self.strength / 2 * (f * (w - old) ** 2).sum()
        return total

    def task_end(self, rows):
        fisher = fisher_by_hand(self.loop.module, self.loop.X[rows], self.loop.Y[rows])
        self.anchors.append((fisher, [w.detach().clone() for w in self.loop.weights]))


class Cumulative(Plain):
    def __init__(self, passes=1):
        self.passes = passes

    def task_end(self, rows):
        for _ in range(self.passes):
            order = self.loop.random.permutation(rows.stop)
            for batch in self.loop.batches(order):
                outputs = self.loop.module(self.loop.X[batch])
                self.loop.descend(self.loop.loss(outputs, self.loop.Y[batch]))


class Replay(Plain):
    """ER, DER and DER++: a memory of (position in the stream, outputs when it was stored)."""

    def __init__(self, capacity, size, true=0.0, stored=0.0):
        self.capacity, self.size, self.true, self.stored = capacity, size, true, stored

    def start(self, loop):
        super().start(loop)
        self.memory, self.offered = [], 0

    def penalty(self):
        loop, total = self.loop, 0.0
        for weight, as_stored in ((self.stored, True), (self.true, False)):
            drawn = self._draw() if weight else []
            if drawn:
                positions = [position for position, _ in drawn]
                then = torch.stack([output for _, output in drawn])
                targets = then if as_stored else loop.Y[positions]
                total = total + weight * loop.loss(loop.module(loop.X[positions]), targets)
        return total

    def _draw(self):
        there = len(self.memory)
        slots = self.loop.random.choice(there, min(there, self.size), replace=False)
        return [self.memory[slot] for slot in slots]

    def batch_end(self, rows, outputs):
        for position, output in zip(rows, outputs, strict=True):
            self.offered += 1
            if len(self.memory) < self.capacity:
                self.memory.append((position, output))
            else:
                slot = self.loop.random.integers(self.offered)
                if slot < self.capacity:
                    self.memory[slot] = (position, output)


class Corrected(Plain):
    keeps_order = True

    def __init__(
        self, gamma, block, refresh="task", kind="iterative", parts="both", first_block="corrected",
        ridge=0.0, assumed_reduction=None,
    ):  # fmt: skip
        self.gamma, self.block, self.refresh, self.kind = gamma, block, refresh, kind
        self.parts, self.first_block, self.ridge = parts, first_block, ridge
        self.assumed_reduction = assumed_reduction

    def start(self, loop):
        super().start(loop)
        self.first_features = gradients(loop.module, loop.X)

    def task_start(self, rows):
        self.rows = rows
        self._compute()

    def epoch_start(self, epoch):
        if epoch and self.refresh == "epoch":
            self._compute()

    def targets(self, rows, targets):
        return self.Z[rows]

    def _compute(self):
        loop, seen = self.loop, slice(0, self.rows.stop)
        features = self.first_features[seen]
        if self.refresh != "never":
            features = gradients(loop.module, loop.X[seen])
        K = (torch.einsum("ikp,jkp->ij", features, features) / features.shape[1]).numpy()
        K = (K + K.T) / 2
        Y, learner = loop.Y[seen].numpy(), loop.learner
        batch, rate = learner.batch_size, learner.lr
        reduction = self.assumed_reduction or learner.reduction
        if reduction == "mean":
            assert len(Y) % batch == 0 or has_memory(learner)
            rate = rate / batch
        if has_memory(learner):
            assert (self.kind, self.parts, self.first_block) == ("iterative", "both", "corrected")
            assert (self.ridge, self.assumed_reduction) == (0.0, None)
            Z = targets_that_coast(K, Y, learner, self.gamma, self.block)
        elif self.kind == "iterative":
            Z = literal.iterative(
                Y, K, rate, self.gamma, self.block, self.ridge, batch, self.parts, self.first_block
            )
        else:
            Z = offline_predictions(K, Y, self.gamma, self.block)
        self.Z = torch.from_numpy(Z)


class Led(Plain):
    """The closed loop: a ridge regression on the first network's tangents leads the network.

    Before each block the ridge regression on everything so far is solved anew. Its predictions for
    the block are where the network is to go, from its present outputs, by its present kernel.
    """

    keeps_order = True

    def __init__(self, gamma, features, block_size, damping):
        self.gamma, self.features, self.block, self.damping = gamma, features, block_size, damping

    def start(self, loop):
        super().start(loop)
        self.first = copy.deepcopy(loop.module)
        self.tangents = random_tangents(
            self.first, loop.Y.shape[1], self.features, int(loop.random.integers(2**31))
        )
        self.seen, self.rho, self.last = [], self.damping, None

    def task_start(self, rows):
        self.rows, self.Z = rows, torch.empty_like(self.loop.Y)

    def targets(self, rows, targets):
        if (rows[0] - self.rows.start) % self.block == 0:
            block = np.arange(rows[0], min(rows[0] + self.block, self.rows.stop))
            self.Z[block] = self._targets_of(block)
        return self.Z[rows]

    @torch.no_grad()
    def _targets_of(self, block):
        X, learner = self.loop.X, self.loop.learner
        self.seen += block.tolist()
        phi, new = self.tangents(X[self.seen]), self.tangents(X[block])
        rest = self.loop.Y[self.seen] - self.first(X[self.seen])
        W = torch.linalg.solve(
            phi.T @ phi + self.gamma * torch.eye(self.features).double(), phi.T @ rest
        )
        aim = self.first(X[block]) + new @ W

        if self.last is not None:  # the steps become shorter if the last block went badly
            inputs, before, expected = self.last
            off = (self.loop.module(inputs) - expected).norm() / (expected - before).norm()
            if off > 0.5:
                self.rho = min(2 * self.rho, 64 * self.damping)
            elif off < 0.25:
                self.rho = max(self.rho / 2, self.damping)

        f = self.loop.module(X[block])
        with torch.enable_grad():
            J = gradients(self.loop.module, X[block])
        K = torch.einsum("ikp,jkp->ij", J, J) / J.shape[1]
        size = len(block)
        a = torch.linalg.solve(
            K + self.rho * K.diagonal().mean() * torch.eye(size).double(), aim - f
        )
        batch = torch.arange(size) // learner.batch_size
        rates = torch.full((size,), learner.lr, dtype=torch.float64)
        if learner.reduction == "mean":
            rates /= batch.bincount()[batch]
        earlier = batch[:, None] > batch[None, :]
        self.last = X[block], f, f + K @ a
        return f + a / rates[:, None] + (K * earlier) @ a


def random_tangents(network, outputs, features, seed):
    """A sketch of the gradient of one combination of the outputs, with random signs."""
    random = torch.Generator().manual_seed(seed)
    signs = 2 * torch.randint(0, 2, (outputs, 1), generator=random) - 1
    combine = torch.nn.Linear(outputs, 1, bias=False).double()
    combine.weight = torch.nn.Parameter(signs.T.double() / outputs**0.5)
    combined = torch.nn.Sequential(OrderedDict(network=network, combine=combine))
    trained = [f"network.{name}" for name, p in network.named_parameters() if p.requires_grad]
    return rt.EmpiricalNTK(combined, outputs=0, params=trained, sketch=features, seed=seed).features


class Loop:
    def __init__(self, module, X, Y, learner, seed):
        self.module, self.X, self.Y, self.learner = module, X, Y, learner
        self.random, self.losses = np.random.default_rng(seed), []
        self.weights = [p for p in module.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(
            self.weights,
            lr=learner.lr,
            momentum=learner.momentum,
            nesterov=learner.nesterov,
            weight_decay=learner.weight_decay,
        )

    def batches(self, order):
        size = self.learner.batch_size
        return [order[start : start + size] for start in range(0, len(order), size)]

    def loss(self, outputs, targets):
        losses = 0.5 * ((outputs - targets) ** 2).sum(dim=1)
        return losses.mean() if self.learner.reduction == "mean" else losses.sum()

    def descend(self, loss):
        self.losses.append(loss.item())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def train(module, stream, learner, methods=(), epochs=1, reshuffle=False, seed=0):
    """Trains the module in place on a stream of the lab."""
    X, Y = samples(stream.train), stream.targets()
    loop, run = Loop(module, X, Y, learner, seed), Trained()
    for method in methods:
        method.start(loop)
    start = 0
    for size in stream.train.sizes:
        rows = slice(start, start + size)
        order = np.arange(rows.start, rows.stop)
        for method in methods:
            method.task_start(rows)
        for epoch in range(epochs):
            if epoch and reshuffle and not any(method.keeps_order for method in methods):
                order = loop.random.permutation(order)
            for method in methods:
                method.epoch_start(epoch)
            for batch in loop.batches(order):
                targets = Y[batch]
                for method in methods:
                    targets = method.targets(batch, targets)
                outputs = module(X[batch])
                loss = loop.loss(outputs, targets)
                for method in methods:
                    loss = loss + method.penalty()
                loop.descend(loss)
                for method in methods:
                    method.batch_end(batch, outputs.detach())
        for method in methods:
            method.task_end(rows)
        right, by_task = accuracies(module, stream)
        run.losses.append(np.mean(loop.losses))
        loop.losses.clear()
        run.overall.append(right)
        run.matrix.append(by_task)
        start = rows.stop
    return run


def samples(part):
    return part.inputs[part.rows]


@torch.no_grad()
def accuracies(module, stream):
    """On all test samples, and on each task's own."""
    right = (module(samples(stream.test)).argmax(1) == stream.test.labels).double()
    parts = torch.split(right, list(stream.test.sizes))
    return right.mean().item(), [part.mean().item() for part in parts]


def fisher_by_hand(module, X, Y):
    """Mean over samples of the squared gradient of the sample's own loss."""
    weights = [p for p in module.parameters() if p.requires_grad]
    total = [torch.zeros_like(w) for w in weights]
    for x, y in zip(X, Y, strict=True):
        loss = 0.5 * ((module(x[None])[0] - y) ** 2).sum()
        for t, g in zip(total, torch.autograd.grad(loss, weights), strict=True):
            t += g**2
    return [t / len(X) for t in total]


def offline_predictions(K, Y, gamma, block):
    """For each block, what the offline learner predicts for it once it has seen it."""
    F = np.zeros_like(Y)
    for start in range(0, len(Y), block):
        rows = slice(start, min(start + block, len(Y)))
        seen = slice(0, rows.stop)
        F[rows] = literal.f_off(Y[seen], K[seen, seen], K[seen, rows], gamma)
    return F


def targets_that_coast(K, Y, learner, gamma, block):
    """Targets of each block for which the learner, once it stops, is where the offline one is.

    A learner with momentum keeps moving after its last step. Where it comes to rest on the block
    is an affine function of the block's targets, found here by trying each of them.
    """
    Z = np.zeros_like(Y)
    F = offline_predictions(K, Y, gamma, block)
    for start in range(0, len(Y), block):
        rows = slice(start, min(start + block, len(Y)))

        def at_rest(targets, rows=rows):
            tried = np.vstack([Z[: rows.start], targets])
            seen = slice(0, rows.stop)
            return K[rows, seen] @ coefficients_at_rest(K[seen, seen], tried, learner)

        size = rows.stop - rows.start
        from_zero = at_rest(np.zeros((size, Y.shape[1])))
        slopes = np.zeros((size, size))
        for i in range(size):
            one = np.zeros((size, Y.shape[1]))
            one[i, 0] = 1.0
            slopes[:, i] = (at_rest(one) - from_zero)[:, 0]
        Z[rows] = np.linalg.solve(slopes, F[rows] - from_zero)
    return Z


def coefficients_at_rest(K, Z, learner):
    """SGD on the kernel's coefficients, then steps without gradient and decay."""
    A, velocity = literal.kernel_sgd(K, Z, learner)
    momentum = learner.momentum
    still_to_come = velocity * momentum / (1 - momentum)
    return A - learner.lr * (momentum * still_to_come if learner.nesterov else still_to_come)
