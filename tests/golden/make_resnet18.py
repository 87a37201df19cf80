"""Makes resnet18.json with torchvision, in an environment of its own.

$ python3.11 -m venv tv
$ tv/bin/pip install torch==2.13.0 torchvision==0.28.0
$ tv/bin/python tests/golden/make_resnet18.py

Beside a torch for the CPU, torchvision's compiled operators cannot be loaded, and it can still be
imported with their names declared: none is used here.
"""

import json
from pathlib import Path


def import_torchvision(torch):
    """With the names of its operators declared, where its own library for CUDA is of no use."""
    if torch.version.cuda is None:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision

    return torchvision


def outputs(network, torch, values):
    """Features and scores; the features are what the last layer is handed."""
    features = []
    hook = network.fc.register_forward_pre_hook(lambda _, inputs: features.extend(inputs))
    with torch.no_grad():
        scores = network(torch.from_numpy(values))
    hook.remove()
    return {"features": features[0].tolist(), "scores": scores.tolist()}


def main():
    # imported here, so that pytest can look for doctests where torchvision is missing
    import torch
    from resnet18_problem import (
        CLASSES,
        INPUTS,
        PHOTOGRAPHS,
        PREPARED_SIZE,
        drawn,
        drawn_weights,
        photograph,
    )

    torchvision = import_torchvision(torch)
    functional = torchvision.transforms.functional
    network = torchvision.models.resnet18(num_classes=CLASSES).double().eval()
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    weights = {name: torch.from_numpy(w) for name, w in drawn_weights(shapes).items()}
    network.load_state_dict(weights)
    transforms = torchvision.models.ResNet18_Weights.IMAGENET1K_V1.transforms()
    prepared = {}
    for name in PHOTOGRAPHS:
        pixels = functional.convert_image_dtype(torch.from_numpy(photograph(name)), torch.float64)
        resized = functional.resize(pixels, [PREPARED_SIZE] * 2, antialias=True)
        prepared[name] = functional.normalize(resized, transforms.mean, transforms.std).tolist()
    golden = {
        "torchvision": torchvision.__version__,
        "shapes": shapes,
        "outputs": {n: outputs(network, torch, drawn(n, INPUTS[n])) for n in INPUTS},
        "prepared": prepared,
    }
    Path(__file__).with_name("resnet18.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
