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
    F, G = gradients(module, A, names), gradients(module, B, names)
    if outputs == "full":
        return F.flatten(0, 1) @ G.flatten(0, 1).T
    K = torch.zeros(len(A), len(B), dtype=F.dtype)
    for k in range(F.shape[1]) if isinstance(outputs, str) else [outputs]:
        for i in range(len(A)):
            for j in range(len(B)):
                K[i, j] += F[i, k] @ G[j, k]
    return K / F.shape[1] if outputs == "mean" else K
