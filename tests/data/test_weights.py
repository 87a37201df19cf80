import pytest
import torch
from safetensors.torch import save_file

from retarget.data.backbones import ResNet18, read_weights, resnet18_from
from retarget.errors import InvalidInputError, MissingDataError


@pytest.fixture(scope="module")
def weights():
    torch.manual_seed(0)
    return ResNet18(classes=6).state_dict()


def written(folder, content, name="weights.pth"):
    path = folder / name
    if path.suffix == ".safetensors":
        save_file(content, path)
    else:
        torch.save(content, path)
    return path


@pytest.mark.parametrize("name", ["weights.pth", "weights.pt", "weights.safetensors"])
def test_weights_in_every_form(tmp_path, weights, name):
    network = resnet18_from(written(tmp_path, weights, name))
    assert not network.training
    assert network.fc.out_features == 6
    for found, expected in zip(network.state_dict().values(), weights.values(), strict=True):
        assert torch.equal(found, expected)
    assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 6)


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
def test_half_precision_becomes_float32(tmp_path, weights, name):
    half = {n: w.half() if w.is_floating_point() else w for n, w in weights.items()}
    network = resnet18_from(written(tmp_path, half, name))
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    assert network.bn1.num_batches_tracked.dtype == torch.int64
    assert torch.equal(network.conv1.weight, weights["conv1.weight"].half().float())


def test_loading_leaves_the_random_numbers_alone(tmp_path, weights):
    path = written(tmp_path, weights)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    resnet18_from(path)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.zeros(3), "holds one Tensor; expected tensors by name"),
        ([torch.zeros(3)], "holds one list; expected tensors by name"),
        ({"model": {}, "epoch": 3}, "something other than tensors: 'model', 'epoch'; expected"),
    ],
)
def test_other_content_is_refused(tmp_path, content, message):
    with pytest.raises(InvalidInputError, match=message):
        read_weights(written(tmp_path, content))


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
def test_a_file_of_holes_is_refused_at_once(tmp_path, weights, name):
    path = written(tmp_path, {"conv1.weight": weights["conv1.weight"].clone()}, name)
    with path.open("rb+") as file:
        file.truncate(5_000_000_000)  # it takes no space
    with pytest.raises(InvalidInputError, match=f"{name} has 5000000000 bytes; expected weights"):
        read_weights(path)


def test_no_file_and_other_files(tmp_path):
    with pytest.raises(MissingDataError, match="there is no file .*nothing.pth"):
        read_weights(tmp_path / "nothing.pth")
    with pytest.raises(InvalidInputError, match="has the suffix '.bin'; expected weights in .safe"):
        read_weights(tmp_path / "weights.bin")


def without(weights, *names):
    return {name: tensor for name, tensor in weights.items() if name not in names}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: without(w, "fc.weight"), "size mismatch for fc.bias|Missing key.*fc.weight"),
        (lambda w: w | {"head.bias": w["fc.bias"].clone()}, "Unexpected key.*head.bias"),
        (lambda w: w | {"conv1.weight": torch.zeros(64, 3, 3, 3)}, "size mismatch for conv1.weig"),
        (lambda w: w | {"fc.weight": torch.zeros(0, 512)}, "size mismatch for fc.weight"),
        (lambda w: {"a": torch.zeros(1)}, 'Missing key.*"conv1.weight", .*\\[...\\]$'),
    ],
)
def test_weights_that_do_not_fit_are_named(tmp_path, weights, change, message):
    with pytest.raises(InvalidInputError, match=f"not hold the weights of a ResNet-18.*{message}"):
        resnet18_from(written(tmp_path, change(weights)))
