import copy

import numpy as np
import pytest
import torch
from torch import nn

from retarget.errors import InvalidInputError, InvalidTypeError
from retarget.lab.data import backbones
from retarget.lab.data.backbones import ResNet18, code_of, load_backbone
from retarget.lab.data.cache import cache_folder
from retarget.lab.data.features import image_features, prepared


class Counting(nn.Module):
    """Two features an image; knows how often it was called, and in which mode."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.last = nn.Linear(3, 2)
        self.calls = []

    def forward(self, images):
        assert not torch.is_grad_enabled()
        assert torch.get_float32_matmul_precision() == "highest"
        self.calls.append((len(images), self.training, self.norm.training))
        return self.last(self.norm(images).mean(dim=(2, 3)))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RETARGET_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (7, 9, 11, 3), np.uint8)


@pytest.fixture
def backbone():
    torch.manual_seed(0)
    return Counting()


def test_features_of_prepared_images(backbone, images):
    found = image_features(backbone, images, size=5, batch_size=3)
    assert backbone.calls == [(3, False, False), (3, False, False), (1, False, False)]
    assert (type(found), found.dtype, found.shape) == (np.ndarray, np.float32, (7, 2))
    with torch.no_grad():
        pixels = prepared(torch.from_numpy(images).permute(0, 3, 1, 2), 5)
        expected = backbone.last(backbone.norm.eval()(pixels).mean(dim=(2, 3)))
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)


def test_of_a_resnet_the_layer_before_the_last(images):
    network = ResNet18(classes=3)
    found = image_features(network, images[:2], size=32)
    pixels = torch.from_numpy(images[:2]).permute(0, 3, 1, 2)
    with torch.no_grad():
        expected = network.eval().features(prepared(pixels, 32))
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


def test_both_layouts_and_both_libraries(backbone, images):
    expected = image_features(backbone, images, size=5, cache=False)
    channels_first = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    for other in (channels_first, torch.from_numpy(images), torch.from_numpy(channels_first)):
        found = image_features(backbone, other, size=5, cache=False)
        assert type(found) is type(other)
        np.testing.assert_array_equal(np.asarray(found), expected)
    found = image_features(backbone.double(), images, size=5, cache=False)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert not cache_folder("features").exists()


def test_the_backbone_and_torch_stay(backbone, images, request):
    chosen = torch.get_float32_matmul_precision()
    request.addfinalizer(lambda: torch.set_float32_matmul_precision(chosen))
    torch.set_float32_matmul_precision("medium")
    backbone.train()
    backbone.norm.eval()  # frozen by its owner

    def left():
        modes = [part.training for part in (backbone, backbone.last, backbone.norm)]
        return modes, torch.get_float32_matmul_precision()

    before, weights = left(), copy.deepcopy(backbone.state_dict())
    with pytest.raises(NotImplementedError, match="meta"):  # a device that computes nothing
        image_features(backbone, images, size=5, device="meta")
    assert backbone.calls == []  # a copy was asked
    image_features(backbone, images, size=5)
    assert backbone.calls
    assert left() == before
    for name, tensor in backbone.state_dict().items():
        assert torch.equal(tensor, weights[name])
    backbone.last = nn.Linear(4, 2)
    with pytest.raises(RuntimeError):
        image_features(backbone, images, size=5)
    assert left() == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_cuda(images):
    network = ResNet18(classes=3).eval()
    expected = image_features(network, images, size=64, cache=False)
    found = image_features(network, images, size=64, cache=False, device="cuda")
    assert network.conv1.weight.device.type == "cpu"
    assert np.abs(found - expected).max() < 1e-5 * expected.max()


def test_anything_that_differs_is_computed_anew(backbone, images, monkeypatch):
    def is_computed(*arguments):
        backbone.calls.clear()
        image_features(backbone, *arguments)
        return bool(backbone.calls)

    assert is_computed(images, 5)
    # in another layout, in portions; neither is another number
    assert not is_computed(torch.from_numpy(images.transpose(0, 3, 1, 2)), 5)
    image_features(backbone, images, 5, batch_size=2)[:] += 1  # the caller's own
    assert not is_computed(images, 5)
    assert is_computed(images, 6)
    other = images.copy()
    other[6, 8, 10, 2] ^= 1
    assert is_computed(other, 5)
    assert is_computed(images[:6], 5)
    backbone.norm.running_mean[1] += 1
    assert is_computed(images, 5)
    backbone.norm.eps = 0.1  # no weight, but printed
    assert is_computed(images, 5)
    assert not is_computed(images, 5)
    monkeypatch.setattr(backbones, "code_of", lambda _: "other code")
    assert is_computed(images, 5)


def test_the_code_of_a_backbone_counts(monkeypatch, tmp_path, images):
    source = "from torch import nn\nclass Net(nn.Module):\n    pass\n"
    monkeypatch.syspath_prepend(tmp_path)
    codes = {code_of(nn.Sequential())}
    for number, text in enumerate((source, source + "# another\n")):
        (tmp_path / f"made_net_{number}.py").write_text(text)
        codes.add(code_of(nn.Sequential(load_backbone(f"made_net_{number}:Net"))))
    assert len(codes) == 3
    scope = {"__name__": "no_module", "nn": nn}
    exec("class Net(nn.Module):\n  def forward(self, x): return x.flatten(1)", scope)
    message = "backbone's Net is not in a file.*pass cache=False"
    with pytest.raises(InvalidInputError, match=message):
        image_features(scope["Net"](), images, size=2)
    assert image_features(scope["Net"](), images, size=2, cache=False).shape == (7, 12)


@pytest.mark.parametrize(
    ("shape", "dtype", "options", "message"),
    [
        ((9, 11, 3), np.uint8, {}, r"images have shape \(9, 11, 3\)"),
        ((2, 9, 11, 4), np.uint8, {}, r"images have shape \(2, 9, 11, 4\)"),
        ((0, 9, 11, 3), np.uint8, {}, r"images have shape \(0, 9, 11, 3\)"),
        ((2, 3, 8, 3), np.uint8, {}, "not ambiguous"),
        ((2, 8, 8, 3), object, {}, "dtype object; expected uint8"),
        ((2, 8, 8, 3), torch.float32, {}, "dtype torch.float32; expected uint8"),
        ((2, 8, 8, 3), np.uint8, {"size": 0}, "^size is 0; expected"),
        ((2, 8, 8, 3), np.uint8, {"batch_size": 2.5}, "^batch_size is 2.5; expected a whole"),
    ],
)
def test_what_makes_no_sense(backbone, shape, dtype, options, message):
    images = (torch if dtype is torch.float32 else np).zeros(shape, dtype=dtype)
    error = InvalidTypeError if "dtype" in message or "whole" in message else InvalidInputError
    with pytest.raises(error, match=message):
        image_features(backbone, images, **options)


class Constant(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, images):
        return self.value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(7, 2, 1, 1), "gave shape \\(7, 2, 1, 1\\) for 7 images; expected \\(7, feat"),
        (torch.zeros(6, 2), "gave shape \\(6, 2\\) for 7 images"),
        ((torch.zeros(7, 2),), "gave tuple for 7 images; expected \\(7, features\\): wrap it"),
        (torch.tensor([[1.0]] * 5 + [[np.nan], [np.inf]]), "a feature of image 5 that is not fin"),
    ],
)
def test_backbones_whose_output_is_no_feature(images, value, message):
    with pytest.raises(InvalidInputError, match=message):
        image_features(Constant(value), images, size=4)
    assert not list(cache_folder("features").glob("*.safetensors"))
