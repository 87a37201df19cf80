"""Small frames in the layouts of CORe50, made here."""

import io
import zipfile

import numpy as np
from PIL import Image

FORMS = ["folder", "zip"]
SOURCES = {"folder": "core50_128x128", "zip": "core50_128x128.zip"}


def frame_name(session, thing, number, suffix="png"):
    return f"s{session}/o{thing}/C_{session:02}_{thing:02}_{number:03}.{suffix}"


def made_frames(sessions=(1, 3), objects=(1, 7, 50), numbers=(2, 5, 9), size=(4, 6), seed=0):
    """Names and pixels (height, width, 3) of frames, not in order."""
    rng = np.random.default_rng(seed)
    keys = [(s, o, n) for s in sessions for o in objects for n in numbers]
    return {
        frame_name(*keys[place]): rng.integers(0, 256, (*size, 3), np.uint8)
        for place in rng.permutation(len(keys))
    }


def picture(pixels, kind="PNG", mode=None):
    """The bytes of a PNG or JPEG."""
    content = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(content, kind)
    return content.getvalue()


def zipped(contents, compression=zipfile.ZIP_STORED):
    """The bytes of an archive; a name may also be a ZipInfo."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return packed.getvalue()


def made_contents(form, frames):
    """The files of a form with their contents."""
    pictures = {f"core50_128x128/{name}": picture(pixels) for name, pixels in frames.items()}
    if form == "folder":
        return pictures
    return {SOURCES[form]: zipped({**pictures, "core50_128x128/readme.txt": b"made"})}


def write_made_core50(folder, form, frames):
    """Writes the files of a form; returns the path to load."""
    for name, content in made_contents(form, frames).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder / SOURCES[form]
