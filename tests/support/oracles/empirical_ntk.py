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
            found = [part.to_dense() if part is not None else None for part in found]
            parts = [
                (torch.zeros_like(value) if part is None else part).flatten()
                for value, part in zip(chosen, found, strict=True)
            ]
            rows.append(torch.cat(parts))
    return torch.stack(rows).reshape(len(X), -1, rows[0].numel())


def products(F, G, outputs="mean"):
    """The kernel between samples with these gradients, (n, c, P) and (m, c, P)."""
    if outputs == "full":
        return F.flatten(0, 1) @ G.flatten(0, 1).T
    K = torch.zeros(len(F), len(G), dtype=F.dtype)
    for k in range(F.shape[1]) if isinstance(outputs, str) else [outputs]:
        for i in range(len(F)):
            for j in range(len(G)):
                K[i, j] += F[i, k] @ G[j, k]
    return K / F.shape[1] if outputs == "mean" else K


def gram(module, A, B, outputs="mean", names=None):
    """The kernel between the samples of A and of B."""
    F = gradients(module, A, names)
    return products(F, F if A is B else gradients(module, B, names), outputs)


def jacobian(module, X, names=None, weights=None):
    """(n, c, P) the same of samples of several tensors (a dict), by torch.func's Jacobian.

    `weights` has a factor for each number of a parameter, by the parameter's name: J P^(1/2).
    """
    chosen = {
        name: value.detach()
        for name, value in module.named_parameters()
        if value.requires_grad and (names is None or name in names)
    }
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


def jacobian_gram(module, A, B, outputs="mean", names=None, weights=None):
    """The kernel between samples of several tensors (dicts); with weights J P J^T."""
    F = jacobian(module, A, names, weights)
    return products(F, F if A is B else jacobian(module, B, names, weights), outputs)


def close(got, expected, tolerance=1e-10):
    """Asserts that no entry is off by more than this share of the largest."""
    assert got.shape == expected.shape
    assert float((got - expected).abs().max()) <= tolerance * float(expected.abs().max())


def forms(kernel, X, reuse=1e6):
    """The form that each layer's part takes for many samples."""
    terms = kernel._plan(kernel._samples("A", X), reuse).terms
    return [type(term).__name__.removesuffix("Term") for term in terms]
