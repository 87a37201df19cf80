"""What is known only when a release is built: where the repository is, and whom to write to.

Both come from the environment, so that no address is written down before there is one:
RETARGET_REPOSITORY (https://host/owner/retarget) and RETARGET_EMAIL. Without them a build works
too; its metadata have no addresses, and the README's links and pictures stay relative.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# A link or picture in Markdown whose address is a path in the repository.
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<path>(?!https?:|#|mailto:)[^)]+)\)")


class CustomMetadataHook(MetadataHookInterface):
    """Fills in authors, urls and the README."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling, which has read the version already."""
        repository = os.environ.get("RETARGET_REPOSITORY", "").rstrip("/")
        author = {"name": "The retarget developers"}
        if email := os.environ.get("RETARGET_EMAIL"):
            author["email"] = email
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if repository:
            readme = with_absolute_links(readme, repository, f"v{metadata['version']}")
            metadata["urls"] = {
                "Repository": repository,
                "Documentation": f"{repository}/tree/v{metadata['version']}/docs",
                "Changelog": f"{repository}/blob/v{metadata['version']}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
        metadata["authors"] = [author]
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}


def with_absolute_links(text: str, repository: str, tag: str) -> str:
    """The README as PyPI needs it: paths of the repository become addresses at a tag."""

    def replaced(found: re.Match[str]) -> str:
        kind = "raw" if found["picture"] else "blob"
        return f"{found['picture']}[{found['text']}]({repository}/{kind}/{tag}/{found['path']})"

    return LINK.sub(replaced, text)
