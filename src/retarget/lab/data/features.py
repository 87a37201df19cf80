"""Features of images: the outputs of a frozen network, cached on disk."""

import copy
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from retarget.arrays import ArrayT, as_tensor, give_back
from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.lab.data.backbones import ResNet18, identity
from retarget.lab.data.cache import cache_folder, cached_array
from retarget.progress import PatientBar
from retarget.samples import evaluating
from retarget.scalars import as_count
from retarget.settings import full_precision

# Means and deviations of red, green and blue in ImageNet, for pixels in [0, 1].
MEANS = (0.485, 0.456, 0.406)
DEVIATIONS = (0.229, 0.224, 0.225)
PORTION = 256  # images to hash or prepare at a time, which avoids a copy of all


def image_features(
    backbone: nn.Module,
    images: ArrayT,
    size: int = 224,
    *,
    batch_size: int = 64,
    device: torch.device | str | None = None,
    cache: bool = True,
    progress: bool | None = None,
) -> ArrayT:
    """Returns the backbone's outputs for each image, computed once for the same input.

    Results are cached in the folder `features` of `RETARGET_CACHE`, or of the user's cache. The key
    is made from the images, the size, and the backbone's weights, printed form and classes' source
    files; if a backbone depends on more than that, pass `cache=False`.

    Args:
        backbone: A `ResNet18`, whose `features` are used, or any module from (n, 3, size, size) to
            (n, d). It is used in eval mode, and its own mode is restored.
        images: (n, height, width, 3) or (n, 3, height, width) of uint8.
        size: Height and width to resize them to.
        batch_size: Number of images computed at a time.
        device: The device to compute on; by default the backbone's own.
        cache: Whether to read and store the features on disk.
        progress: Whether to show a progress bar; None shows it on a terminal only.

    Returns:
        (n, d) features in float32.

    Raises:
        InvalidInputError: Images, sizes or the backbone's output are invalid.
        InvalidTypeError: The images are not uint8, or a size is not a whole number.
    """
    pixels = _as_images(images)
    size = as_count("size", size)
    batch_size = as_count("batch_size", batch_size)
    compute = partial(_compute, backbone, pixels, size, batch_size, device, progress)
    if cache:
        code = Path(__file__).read_text(encoding="utf-8")
        content = chain([code, f"size {size}"], identity(backbone), _portions(pixels))
        features = cached_array(cache_folder("features"), "features", content, compute)
    else:
        features = compute()
    result: ArrayT = give_back(torch.from_numpy(features).to(pixels.device), images)
    return result


def prepared(images: Tensor, size: int) -> Tensor:
    """Prepares images (n, 3, height, width) of uint8 for a network for ImageNet, in float32.

    They are resized to (size, size) by antialiased bilinear interpolation without rounding, scaled
    to [0, 1] and normalized by ImageNet's means and deviations.

    Examples:
        >>> white = torch.full((1, 3, 2, 2), 255, dtype=torch.uint8)
        >>> print(prepared(white, 4)[0, :, 0, 0].numpy().round(2))
        [2.25 2.43 2.64]
    """
    scaled = images.float() / 255
    resized = functional.interpolate(
        scaled, (size, size), mode="bilinear", align_corners=False, antialias=True
    )
    means, deviations = (
        resized.new_tensor(values)[:, None, None] for values in (MEANS, DEVIATIONS)
    )
    return (resized - means) / deviations


def all_prepared(images: np.ndarray, size: int, device: str) -> Tensor:
    """The same for many images, on the device and a few at a time."""
    parts = np.array_split(images, -(-len(images) // PORTION))
    return torch.cat([prepared(torch.from_numpy(part).to(device), size) for part in parts])


def _as_images(images: Any) -> Tensor:
    """Checks images and puts the channels first, without a copy."""
    dtype = str(images.dtype if isinstance(images, Tensor) else np.asarray(images).dtype)
    if dtype.removeprefix("torch.") != "uint8":
        raise InvalidTypeError(f"images have dtype {dtype}; expected uint8, from 0 to 255")
    pixels = as_tensor("images", images)
    first, last = (pixels.ndim == 4 and pixels.shape[axis] == 3 for axis in (1, 3))
    if not pixels.numel() or first == last:
        raise InvalidInputError(
            f"images have shape {tuple(pixels.shape)}; expected (n, height, width, 3) or "
            "(n, 3, height, width), not ambiguous, and at least one image"
        )
    return pixels if first else pixels.permute(0, 3, 1, 2)


def _compute(
    backbone: nn.Module,
    pixels: Tensor,
    size: int,
    batch_size: int,
    device: torch.device | str | None,
    progress: bool | None,
) -> np.ndarray:
    weight = next(backbone.parameters(), torch.empty(0))
    target = weight.device if device is None else torch.device(device)
    # On another device a copy is used, so that the caller's backbone is not moved.
    module = backbone if target == weight.device else copy.deepcopy(backbone).to(target)
    extract = module.features if isinstance(module, ResNet18) else module
    parts = []
    bars = PatientBar("features", len(pixels), progress)
    with evaluating(module), torch.no_grad(), full_precision(target), bars as bar:
        for start in range(0, len(pixels), batch_size):
            batch = pixels[start : start + batch_size].to(target).contiguous()
            rows = extract(prepared(batch, size).to(weight.dtype))
            parts.append(_checked(rows, len(batch), start))
            bar.advance(len(batch))
    return torch.cat(parts).numpy()


def _checked(rows: Any, count: int, start: int) -> Tensor:
    if not isinstance(rows, Tensor) or rows.ndim != 2 or len(rows) != count:
        got = f"shape {tuple(rows.shape)}" if isinstance(rows, Tensor) else type(rows).__name__
        raise InvalidInputError(
            f"the backbone gave {got} for {count} images; expected ({count}, features): "
            "wrap it in a module that flattens its output"
        )
    features: Tensor = rows.float().cpu()
    bad = ~features.isfinite().all(dim=1)
    if bad.any():
        raise InvalidInputError(
            f"the backbone gave a feature of image {start + int(bad.nonzero()[0, 0])} that is not "
            "finite; check whether its weights are damaged"
        )
    return features


def _portions(pixels: Tensor) -> Iterator[np.ndarray]:
    starts = range(0, len(pixels), PORTION)
    return (pixels[start : start + PORTION].cpu().numpy() for start in starts)
