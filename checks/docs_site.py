"""MkDocs hooks of the documentation site (`mkdocs.yml`).

1. README.md, CONTRIBUTING.md, CHANGELOG.md and the card of the nano model become pages, so each
   text has one home. Links between them and docs/ are rewritten; a link to a file that the site
   does not have, such as a script, becomes plain text. The pages about commands and settings are
   made from the program (`checks/reference.py`).
2. Formulas (`$...$`, `$$...$$`, which GitHub renders too) become MathML: no script is needed.
3. The search works from file://: the index and Material's search worker are written as scripts.
"""

import json
import os
import re
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

from checks.reference import pages

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "germline/nano/README.md": "nano.md",
}
LINK = re.compile(r"(?P<shown>!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>[^)\s]+)\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages whose source is outside docs/, and those that are made from the program."""
    for source, page in PAGES.items():
        text = FRONT_MATTER.sub("", (ROOT / source).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text))
    for page, text in pages().items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links between docs/ and the other pages lead to pages of the site."""
    sources = {name: path for path, name in PAGES.items()}
    source = Path(sources.get(page.file.src_uri, f"docs/{page.file.src_uri}"))
    here = Path(page.file.src_uri).parent
    blocks = re.split(r"(^```.*?^```|`[^`\n]*`)", markdown, flags=re.DOTALL | re.MULTILINE)
    # Every second piece is code.
    blocks[::2] = [LINK.sub(lambda link: _link(link, source, here), text) for text in blocks[::2]]
    return "".join(blocks)


def _link(link: re.Match[str], source: Path, here: Path) -> str:
    """Return a link of `source` as the page in the folder `here` of the site writes it."""
    target, hash_sign, anchor = link["target"].partition("#")
    if not target or re.match(r"[a-z]+:", target):
        return link[0]
    path = os.path.normpath(source.parent / target)
    if path in PAGES:
        name = PAGES[path]
    elif path.startswith("docs/"):
        name = path.removeprefix("docs/")
    else:
        return link["shown"].removeprefix("[").removesuffix("]")
    return f"{link['shown']}({os.path.relpath(name, here)}{hash_sign}{anchor})"


def on_page_content(html: str, **_: Any) -> str:
    """Write formulas as MathML."""

    def formula(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        math = convert(unescape(found[2]).strip(), display=display)
        return f'<div class="formula" tabindex="0">{math}</div>' if display == "block" else math

    return FORMULA.sub(formula, html)


def on_post_build(config: Any, **_: Any) -> None:
    """Write the search index and the search worker as scripts, which file:// may load."""
    site = Path(config["site_dir"])
    index = (site / "search/search_index.json").read_text(encoding="utf-8")
    (site / "search/search_index.js").write_text(f"var __index = {index}", encoding="utf-8")
    (worker,) = site.glob("assets/javascripts/workers/search.*.min.js")
    script = json.dumps(worker.read_text(encoding="utf-8"))
    (site / "search/worker.js").write_text(f"var searchWorker = {script}", encoding="utf-8")
