"""Float32 computed in full on every device."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Without TF32, which leaves three digits and which torch allows convolutions by default."""
    chosen = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    backend = torch.backends.cudnn
    convolutions = backend.flags(
        enabled=backend.enabled,
        benchmark=backend.benchmark,
        deterministic=backend.deterministic,
        allow_tf32=False,
    )
    try:
        with convolutions if device.type == "cuda" else nullcontext():
            yield
    finally:
        torch.set_float32_matmul_precision(chosen)
