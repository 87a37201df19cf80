import pytest
import torch
from torch import nn

from retarget.data.backbones import RESNET18, ResNet18, load_backbone
from retarget.errors import InvalidInputError, InvalidTypeError

NAME = RESNET18.files[0].download.name


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "made" / NAME
    path.parent.mkdir()
    torch.save(ResNet18(classes=4).state_dict(), path)
    return path


def test_by_name_from_the_folder_of_data_and_by_file(monkeypatch, weights):
    assert isinstance(load_backbone(weights), ResNet18)
    assert load_backbone("resnet18", weights.parent).fc.out_features == 4
    monkeypatch.setenv("RETARGET_DATA", str(weights.parent))
    assert load_backbone("resnet18").fc.out_features == 4
    monkeypatch.setenv("HOME", str(weights.parent))
    assert load_backbone(f"~/{NAME}").fc.out_features == 4


def test_by_import_path(monkeypatch, tmp_path):
    (tmp_path / "made_networks.py").write_text(
        "from torch import nn\n"
        "class Small:\n    flat = nn.Flatten\n"
        "def network():\n    return nn.Flatten()\n"
        "def number():\n    return 3\n"
        "def sized(width):\n    return nn.Linear(width, 1)\n"
        "constant = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(load_backbone("made_networks:network"), nn.Flatten)
    assert isinstance(load_backbone("made_networks:Small.flat"), nn.Flatten)
    with pytest.raises(InvalidTypeError, match="'made_networks:number' gave a int; expected a tor"):
        load_backbone("made_networks:number")
    with pytest.raises(InvalidTypeError, match="'made_networks:constant' is a int; expected a fun"):
        load_backbone("made_networks:constant")
    with pytest.raises(InvalidInputError, match="'made_networks:sized' failed when it .* 'width'"):
        load_backbone("made_networks:sized")
    with pytest.raises(InvalidInputError, match="cannot be imported: .*no attribute 'other'; exp"):
        load_backbone("made_networks:other")
    with pytest.raises(InvalidInputError, match="'no_such.package:net' cannot be imported: No mod"):
        load_backbone("no_such.package:net")


@pytest.mark.parametrize("name", ["resnet19", "", "a b:c", "weights.bin", "3:x"])
def test_other_names(name):
    with pytest.raises(InvalidInputError, match=f"there is no backbone '{name}'; expected 'resnet"):
        load_backbone(name)
