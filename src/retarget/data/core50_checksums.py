"""What identifies the frames of CORe50 that a run reads."""

from functools import lru_cache
from pathlib import Path

from retarget.data.checksums import file_checksum, files_checksum
from retarget.data.core50 import OFFICIAL_NAMES, find_core50
from retarget.data.core50_frames import choose
from retarget.data.core50_images import open_folder
from retarget.data.core50_packed import PATHS_NAME, require_paths

FOLDER, ZIP, PACKED = OFFICIAL_NAMES


def core50_checksums(source: Path | None, frames_per_session: int) -> dict[str, str]:
    """SHA-256 of what `load_core50` reads, by its official name, whatever it is called here.

    Of a folder they are the frames that would be used, of an archive it is the archive.

    Raises:
        MissingDataError: There are no such files; the message says where to get them.
        InvalidInputError: The folder does not have the frames.
    """
    path = find_core50(source)
    if path.is_dir():
        return {f"core50/{FOLDER}": _frames_checksum(path.absolute(), frames_per_session)}
    if path.suffix == ".npz":
        paths = require_paths(path)
        return {
            f"core50/{PACKED}": file_checksum(path),
            f"core50/{PATHS_NAME}": file_checksum(paths),
        }
    return {f"core50/{ZIP}": file_checksum(path)}


# A folder has 165,000 files, and a figure a hundred runs: it is looked through once a process.
@lru_cache(maxsize=8)
def _frames_checksum(folder: Path, frames_per_session: int) -> str:
    with open_folder(folder) as pictures:
        chosen = choose(pictures.frames, frames_per_session, pictures.name, partial=False)
        # By its number, not its name: in another folder, or in none, it is the same frame.
        paths = {
            f"{frame.session} {frame.label} {frame.number}": folder / pictures.file_name(frame)
            for frame in chosen
        }
    return files_checksum(paths)
