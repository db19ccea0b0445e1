"""Make the links of the README absolute, for pages that show it outside the repository.

python recipes/absolute_links.py OWNER/NAME TAG     # as in .github/workflows/release.yml
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)]+)\)")
"""a link or an image of Markdown with a path inside the repository"""


def absolute(text: str, repository: str, tag: str) -> str:
    """The text with links to the files of a tag; images are shown from their raw contents."""

    def link(found: re.Match[str]) -> str:
        image, name, path = found.groups()
        place = "https://raw.githubusercontent.com" if image else "https://github.com"
        return f"{image}[{name}]({place}/{repository}/{'' if image else 'blob/'}{tag}/{path})"

    return LINK.sub(link, text)


if __name__ == "__main__":
    readme = Path(__file__).parents[1] / "README.md"
    readme.write_text(absolute(readme.read_text(encoding="utf-8"), *sys.argv[1:]), encoding="utf-8")
