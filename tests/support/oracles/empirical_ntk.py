"""The empirical NTK by its definition: one sample, one output, one gradient at a time."""

import torch


def gradients(module, X, names=None):
    """(n, c, P) each output's gradient by every trained (or named) parameter, as one vector."""
    chosen = [
        value
        for name, value in module.named_parameters()
        if value.requires_grad and (names is None or name in names)
    ]
    rows = []
    for x in X:
        with torch.enable_grad():
            outputs = module(x[None])[0]
        for output in outputs:
            found = torch.autograd.grad(output, chosen, retain_graph=True, allow_unused=True)
            parts = [
                (torch.zeros_like(value) if part is None else part).flatten()
                for value, part in zip(chosen, found, strict=True)
            ]
            rows.append(torch.cat(parts))
    return torch.stack(rows).reshape(len(X), -1, rows[0].numel())


def gram(module, A, B, outputs="mean", names=None):
    """The kernel between the samples of A and of B."""
    F = gradients(module, A, names)
    G = F if A is B else gradients(module, B, names)
    if outputs == "full":
        return F.flatten(0, 1) @ G.flatten(0, 1).T
    K = torch.zeros(len(A), len(B), dtype=F.dtype)
    for k in range(F.shape[1]) if isinstance(outputs, str) else [outputs]:
        for i in range(len(A)):
            for j in range(len(B)):
                K[i, j] += F[i, k] @ G[j, k]
    return K / F.shape[1] if outputs == "mean" else K


def jacobian_gram(module, A, B, outputs="mean", names=None, weights=None):
    """The same for samples of several tensors (dicts), by torch.func's Jacobian.

    `weights` has a factor for each number of a parameter, by the parameter's name: J P J^T.
    """
    chosen = {
        name: value.detach()
        for name, value in module.named_parameters()
        if value.requires_grad and (names is None or name in names)
    }

    def features(X):
        rows = []
        for i in range(len(next(iter(X.values())))):
            sample = {key: value[i : i + 1] for key, value in X.items()}

            def run(values, sample=sample):
                return torch.func.functional_call(module, values, (), sample)[0]

            found = torch.func.jacrev(run, chunk_size=1)(chosen)
            parts = [
                (found[name] if weights is None else found[name] * weights[name].sqrt()).detach()
                for name in chosen
            ]
            rows.append(torch.cat([part.flatten(1) for part in parts], 1))
        return torch.stack(rows)

    F = features(A)
    G = F if A is B else features(B)
    if outputs == "full":
        return F.flatten(0, 1) @ G.flatten(0, 1).T
    F, G = (each if isinstance(outputs, str) else each[:, [outputs]] for each in (F, G))
    K = torch.einsum("ikp,jkp->ij", F, G)
    return K / F.shape[1] if outputs == "mean" else K


def close(got, expected, tolerance=1e-10):
    """Asserts that no entry is off by more than this share of the largest."""
    assert got.shape == expected.shape
    assert float((got - expected).abs().max()) <= tolerance * float(expected.abs().max())


def forms(kernel, X, reuse=1e6):
    """The form that each layer's part takes for many samples."""
    terms = kernel._plan(kernel._samples("A", X), reuse).terms
    return [type(term).__name__.removesuffix("Term") for term in terms]
