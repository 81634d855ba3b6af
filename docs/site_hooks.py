"""What the site has besides the pages in docs/: CONTRIBUTING.md and CHANGELOG.md; and a check that it works offline."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OTHER_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LOADED = re.compile(r'<(?:script|img|link(?=[^>]*rel="(?:stylesheet|preconnect)))[^>]*(?:src|href)="(https?:[^"]+)')
"""What a page takes from the network."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie beside docs/, with their links as seen from inside."""
    for source, page in OTHER_PAGES.items():
        text = (ROOT / source).read_text().replace("](docs/", "](")
        for other, target in OTHER_PAGES.items():
            text = text.replace(f"]({other})", f"]({target})")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Let links to the pages beside docs/ lead to where they are on the site."""
    for source, target in OTHER_PAGES.items():
        markdown = markdown.replace(f"](../{source}", f"]({target}")
    return markdown


def on_post_page(output: str, page: object, **_: object) -> str:
    """Refuse a page that loads something from the network."""
    if match := LOADED.search(output):
        raise PluginError(f"{page} loads {match[1]}: the site must work offline")
    return output
