"""docs/architecture.md and the decision records name files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "architecture.md", *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
PLACES = [ROOT, ROOT / "src" / "treadle", ROOT / "src" / "treadle" / "store"]


def named(page: Path) -> set[str]:
    """Folders in backticks, and every Python and SQL file."""
    text = page.read_text()
    return {*re.findall(r"`((?:\w+/)+)`", text), *re.findall(r"((?:\w+/)*[\w*]+\.(?:py|sql)\b)", text)}


def exists(name: str) -> bool:
    return any(list(place.glob(name) if "/" in name else place.rglob(name)) for place in PLACES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_is_named_exists(page: Path) -> None:
    assert [name for name in sorted(named(page)) if not exists(name)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_page_names_files_in_every_layer() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    layers = [path.name for path in (ROOT / "src" / "treadle").iterdir() if (path / "__init__.py").exists()]
    assert [layer for layer in layers if layer not in text] == []
