"""What pages and messages say about installing is what pyproject.toml installs."""

import re
import tomllib
from pathlib import Path

import pytest

import fragmenta
from fragmenta.envs import ADAPTERS
from fragmenta.runs.sinks import SINKS
from fragmenta_host.catalogue import EXTRAS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
AVAILABLE = PROJECT["project"]["optional-dependencies"]
PLACEHOLDER = "extra"
"""On the page of environments, stands for any of them."""
TEXTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile")),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "src").rglob("*.py"),
]


def named_extras(text: str) -> set[str]:
    groups = re.findall(r"(?:fragmenta|editable '\.)\[([a-z0-9_, -]+)\]", text)
    return {extra.strip() for group in groups for extra in group.split(",")}


def test_extras_in_pages_and_messages_exist() -> None:
    named = {path: named_extras(path.read_text()) for path in TEXTS}
    assert {"jaxmarl", "compare", "mp4", "ray", "onnx"} <= set().union(*named.values())
    wrong = {str(path): extras - {*AVAILABLE, PLACEHOLDER} for path, extras in named.items()}
    assert not {path: extras for path, extras in wrong.items() if extras}


def test_extras_in_tables_of_environments_exist() -> None:
    heads = r"\| (?:on the host|in JAX) \| name \| extra \|\n\|[-|]+\|\n((?:\|.*\n)+)"
    tables = re.findall(heads, (ROOT / "docs" / "environments.md").read_text())
    listed = {row.rsplit("|", 2)[1].strip(" `") for table in tables for row in table.splitlines()}
    assert len(tables) == 2
    assert listed == set(EXTRAS.values()) | set(ADAPTERS)
    assert listed <= set(AVAILABLE)


def test_extras_that_messages_name_by_package_exist() -> None:
    assert set(SINKS) - {"tensorboard"} <= set(AVAILABLE)


@pytest.mark.parametrize("extra", ["onnx", "pettingzoo", "ray", "compare", "envpool"])
def test_tests_run_with_these_extras(extra: str) -> None:
    assert set(AVAILABLE[extra]) <= set(PROJECT["dependency-groups"]["dev"])


def test_every_dependency_of_tests_and_the_site_is_pinned() -> None:
    pinned = {re.split(r"[=;]", line)[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    groups = PROJECT["dependency-groups"]
    wanted = {re.split(r"[\[<>=]", line)[0].lower() for line in [*groups["dev"], *groups["docs"]]}
    assert wanted <= pinned


def test_the_citation_names_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {fragmenta.__version__}\n" in citation
    assert f"\nlicense: {PROJECT['project']['license']}\n" in citation
