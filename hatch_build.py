"""The addresses in the package's metadata: of whoever publishes it, from OLLA_XLA_REPOSITORY.

With that variable, such as https://github.com/OWNER/olla_xla, the metadata has the project's
addresses, and links of README that are relative, which an index cannot follow, lead there. Without
it a build has neither. `.ci/release` sets it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]+)\)")


class CustomMetadataHook(MetadataHookInterface):
    """Sets `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling with the metadata of pyproject.toml."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        urls = {}
        if repository := os.environ.get("OLLA_XLA_REPOSITORY", "").rstrip("/"):
            text = absolute(text, repository)
            urls = {
                "Repository": repository,
                "Issues": f"{repository}/issues",
                "Documentation": f"{repository}/tree/main/docs",
                "Changelog": f"{repository}/blob/main/CHANGELOG.md",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls


def absolute(text: str, repository: str) -> str:
    """Markdown with its relative links made absolute: pictures as raw files, others as pages."""

    def link(found: re.Match[str]) -> str:
        kind = "raw" if found[1] else "blob"
        return f"{found[1]}[{found[2]}]({repository}/{kind}/main/{found[3]})"

    return _LINK.sub(link, text)
