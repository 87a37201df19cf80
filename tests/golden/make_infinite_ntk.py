"""Makes infinite_ntk.json with neural-tangents, in an environment of its own.

$ python3.11 -m venv nt
$ nt/bin/pip install neural-tangents==0.6.5 jax==0.4.25 jaxlib==0.4.25 tf2jax==0.3.6 'numpy<2'
$ nt/bin/python tests/golden/make_infinite_ntk.py
"""

import json
from pathlib import Path

import numpy as np


def network(description, stax):
    """The network in neural-tangents' words."""
    std = {"W_std": description["weight_std"], "b_std": description["bias_std"]}
    layers = []
    for name, options in description["layers"]:
        if name == "dense":
            layers.append(stax.Dense(1, **std))
        elif name == "conv":
            size, step = (options["kernel"],) * 2, (options["stride"],) * 2
            padding = "SAME" if options["same"] else "VALID"
            layers.append(stax.Conv(1, size, step, padding, **std))
        elif name == "relu":
            layers.append(stax.Relu())
        elif name == "leaky":
            layers.append(stax.LeakyRelu(options["slope"]))
        elif name == "gelu":
            layers.append(stax.Gelu(approximate=False))
        elif name == "pool":
            size = (options["kernel"],) * 2
            layers.append(stax.AvgPool(size, size))
        else:
            layers.append(stax.Flatten())
    return stax.serial(*layers)[2]


def main():
    # imported here, so that pytest can look for doctests where neural-tangents is missing
    import jax
    from infinite_ntk_networks import NETWORKS
    from neural_tangents import stax

    jax.config.update("jax_enable_x64", True)
    random = np.random.default_rng(0)
    golden = {}
    for name, description in NETWORKS.items():
        samples = random.standard_normal((3, *description["shape"]))
        last = samples if samples.ndim == 2 else np.moveaxis(samples, 1, -1)
        kernel = network(description, stax)(last, None, ("ntk", "nngp"))
        golden[name] = {
            "samples": samples.tolist(),
            "ntk": np.asarray(kernel.ntk).tolist(),
            "nngp": np.asarray(kernel.nngp).tolist(),
        }
    path = Path(__file__).with_name("infinite_ntk.json")
    path.write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
