"""The official files of CIFAR-10: two versions of the same images, each an archive of six batches.

The MD5 of the archives are those that their makers publish; the SHA-256 are of the same files.
"""

from retarget.data.files import DataFile, DataSet, StoredFile

MIRRORS = (
    "https://www.cs.toronto.edu/~kriz/",
    "https://dataset.bj.bcebos.com/cifar/",
)

PYTHON_ARCHIVE = StoredFile(
    "cifar-10-python.tar.gz",
    170_498_071,
    "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    "c58f30108f718f92721af3b95e74349a",
)
PYTHON_FILES = (
    StoredFile(
        "cifar-10-batches-py/data_batch_1",
        31_035_704,
        "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd",
        "c99cafc152244af753f735de768cd75f",
    ),
    StoredFile(
        "cifar-10-batches-py/data_batch_2",
        31_035_320,
        "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8",
        "d4bba439e000b95fd0a9bffe97cbabec",
    ),
    StoredFile(
        "cifar-10-batches-py/data_batch_3",
        31_035_999,
        "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9",
        "54ebc095f3ab1f0389bbae665268c751",
    ),
    StoredFile(
        "cifar-10-batches-py/data_batch_4",
        31_035_696,
        "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b",
        "634d18415352ddfa80567beed471001a",
    ),
    StoredFile(
        "cifar-10-batches-py/data_batch_5",
        31_035_623,
        "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154",
        "482c414d41f54cd18b22e5b47cb7c3cb",
    ),
    StoredFile(
        "cifar-10-batches-py/test_batch",
        31_035_526,
        "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831",
        "40351d587109b95175f43aff81a1287e",
    ),
)

BINARY_ARCHIVE = StoredFile(
    "cifar-10-binary.tar.gz",
    170_052_171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    "c32a1d4ab5d03f1284b67883e8d87530",
)
BINARY_FILES = (
    StoredFile(
        "cifar-10-batches-bin/data_batch_1.bin",
        30_730_000,
        "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "5dd7e06a14cb22eb9f671a540d1b7c25",
    ),
    StoredFile(
        "cifar-10-batches-bin/data_batch_2.bin",
        30_730_000,
        "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "5ea93a67294ea407fff1d09f752e9692",
    ),
    StoredFile(
        "cifar-10-batches-bin/data_batch_3.bin",
        30_730_000,
        "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "942cd6a4bcdd0dd3c604fbe906cb4421",
    ),
    StoredFile(
        "cifar-10-batches-bin/data_batch_4.bin",
        30_730_000,
        "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "ae636b3ba5c66a11e91e8cb52e771fcb",
    ),
    StoredFile(
        "cifar-10-batches-bin/data_batch_5.bin",
        30_730_000,
        "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "53f37980c15c3d472c316c40844f3f0d",
    ),
    StoredFile(
        "cifar-10-batches-bin/test_batch.bin",
        30_730_000,
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        "803d5f7f4d78ea53de84dbe85f74fb6d",
    ),
)

CIFAR10 = DataSet(
    name="cifar10",
    description="60,000 colour photographs, 32 x 32 pixels, 10 classes",
    files=(
        DataFile(
            download=PYTHON_ARCHIVE,
            mirrors=tuple(f"{mirror}{PYTHON_ARCHIVE.name}" for mirror in MIRRORS),
            unpacked=PYTHON_FILES,
            alternatives=((BINARY_ARCHIVE,), BINARY_FILES),
        ),
    ),
)
