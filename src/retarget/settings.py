"""Settings of torch, of a thread or the whole process, for as long as some computation lasts."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from threading import get_ident
from typing import Any, ParamSpec, TypeVar

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from retarget.locks import Lock, in_forks

ArgumentsT = ParamSpec("ArgumentsT")
ResultT = TypeVar("ResultT")

AUTOCAST = "cpu", "cuda", "mps", "xpu"  # kinds of devices that autocast can be on for


def in_plain_torch(function: Callable[ArgumentsT, ResultT]) -> Callable[ArgumentsT, ResultT]:
    """Makes a function compute in the types of its tensors, without gradients, as torch does.

    Autocast would multiply in half precision, and label the result float32. What is made in
    inference mode can never be differentiated, or written to afterwards. So both are off inside,
    for this thread. Every public function that computes with torch has this decorator.
    """

    @wraps(function)
    def call(*args: ArgumentsT.args, **kwargs: ArgumentsT.kwargs) -> ResultT:
        with ExitStack() as settings:
            if torch.is_inference_mode_enabled():
                settings.enter_context(torch.inference_mode(False))
            for kind in AUTOCAST:
                if torch.is_autocast_enabled(kind):
                    settings.enter_context(torch.autocast(kind, enabled=False))
            settings.enter_context(torch.no_grad())
            return function(*args, **kwargs)

    return call


class SharedSetting:
    """A setting of the whole process: the first thread makes it, and the last one undoes it."""

    def __init__(self, setting: Callable[[], AbstractContextManager[Any]]) -> None:
        self._setting = setting
        self._in_force = ExitStack()
        self._lock = Lock()
        self._users: list[int] = []  # the threads, as often as each uses it
        in_forks(self._leave_others)

    def __enter__(self) -> None:
        with self._lock.of_this_process:
            if not self._users:
                self._in_force.enter_context(self._setting())
            self._users.append(get_ident())

    def __exit__(self, *error: object) -> None:
        with self._lock.of_this_process:
            self._users.remove(get_ident())
            if not self._users:
                self._in_force.close()

    def _leave_others(self) -> None:
        """Undoes it for the threads that a forked process does not have."""
        self._users = [thread for thread in self._users if thread == get_ident()]
        if not self._users:
            self._in_force.close()


@contextmanager
def _full_products() -> Iterator[None]:
    chosen = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(chosen)


def _full_convolutions() -> AbstractContextManager[Any]:
    backend = torch.backends.cudnn
    settings: AbstractContextManager[Any] = backend.flags(
        enabled=backend.enabled,
        benchmark=backend.benchmark,
        deterministic=backend.deterministic,
        allow_tf32=False,
    )
    return settings


@contextmanager
def _without_batching_hints() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop because", UserWarning)
        yield


# torch says where it loops over samples as it has no faster way: for users that is no news.
quiet_batching = SharedSetting(_without_batching_hints)
# Attention by plain products: torch's other ways have no rules for vmap and forward mode.
plain_attention = SharedSetting(lambda: sdpa_kernel(SDPBackend.MATH))
_products = SharedSetting(_full_products)
_convolutions = SharedSetting(_full_convolutions)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Switches off TF32, which keeps three digits and is torch's default for convolutions."""
    with _products, _convolutions if device.type == "cuda" else nullcontext():
        yield
