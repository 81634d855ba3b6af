"""What the pages show works: commands and flags exist, Python compiles, links lead somewhere, and all of it runs."""

import importlib
import os
import re
from pathlib import Path

import pytest

import blocks
import fragmenta
from fragmenta.errors import ConfigError
from helpers import assert_same, cpu_cluster, plain, planned, run_plan

ROOT = blocks.ROOT
PAGES = {os.path.relpath(page, ROOT): page for page in blocks.pages()}
LINKED = {**PAGES, **{name: ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md")}}
SHOWN = {"bash", "python", "text"}
"""The languages of blocks. What is in another one would never be run."""


def prose(page: Path) -> str:
    """A page without its blocks and comments."""
    return re.sub(r"```.*?```|<!--.*?-->", "", page.read_text(), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_python_compiles(name: str) -> None:
    for block in blocks.blocks(PAGES[name]):
        if block.language == "python":
            compile(blocks.parsed_python(block), block.place, "exec")


@pytest.mark.parametrize("name", PAGES)
def test_commands_and_flags_exist(name: str) -> None:
    for block in blocks.blocks(PAGES[name]):
        if block.language == "bash":
            shortened = block.notes.get("run", "")
            used = [blocks.with_added_flags(command, shortened) for command in blocks.commands(block)]
            for command in used:
                blocks.check_command(command)
            added = {word for word in shortened.split() if word.startswith("--")}
            assert added <= {word for command in used for word in command}, f"{block.place}: no command has {added}"


@pytest.mark.parametrize("name", LINKED)
def test_links_lead_somewhere(name: str) -> None:
    page = LINKED[name]
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{name} links to {link}, which has {sorted(anchors(target))}"


@pytest.mark.parametrize("name", LINKED)
def test_blocks_are_fenced_in_a_known_language(name: str) -> None:
    """Else nothing would run them."""
    assert {block.language for block in blocks.blocks(LINKED[name])} <= SHOWN
    assert not re.search(r"^\n {4,}\S", prose(LINKED[name]), re.MULTILINE), "use a fenced block"


def test_the_readme_is_one_screen() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 85
    first = "\n".join(text.splitlines()[:15])
    assert all(shown in first for shown in ("make train", "make test", "docs/images/overview.svg"))
    languages = [block.language for block in blocks.blocks(ROOT / "README.md")]
    assert languages.count("python") == 2  # how it is called, and an algorithm of one's own


def test_warnings_of_the_site_are_errors() -> None:
    (command,) = re.findall(r"mkdocs build.*", (ROOT / "Makefile").read_text())
    assert "--strict" in command
    assert "--quiet" not in command, "mkdocs then does not count warnings"


def test_the_reference_has_every_public_name() -> None:
    listed = re.findall(r"^::: fragmenta\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(fragmenta.__all__)


def test_the_site_has_every_page() -> None:
    listed = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {os.path.relpath(page, ROOT / "docs") for page in PAGES.values() if page.name != "README.md"}
    assert listed == {*pages, "contributing.md", "changelog.md"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("fragmenta trian ppo CartPole-v1", "unknown command 'trian'"),
        ("fragmenta train poo CartPole-v1", "unknown algorithm 'poo'"),
        ("fragmenta train ppo CartPole-v1 --totl-steps 5", "unknown flag '--totl-steps'"),
        ("fragmenta eval runs/a --episodes many", "many"),
        ("X=1 fragmenta train my_module:Mine CartPole-v1 --own 3 --seed one | head", "one"),
    ],
)
def test_wrong_commands_are_found(line: str, message: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```bash\nmake train\n{line}\n```\n")
    (command,) = blocks.commands(blocks.blocks(page)[0])
    with pytest.raises(ConfigError, match=message):
        blocks.check_command(command)


def test_a_block_that_is_wrong_fails_and_others_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- setup\n```python\nvalue = 3\n```\n-->\n"
        "<!-- file: own.py -->\n```python\nnumber = 4\n```\n"
        "<!-- run: end=5 -->\n```python\nimport own\nassert (value, own.number, dict(end=9)['end']) == (3, 4, 5)\n```\n"
        "```bash\ntest -f own.py\n```\n"
        "<!-- not run: it needs a GPU -->\n```bash\nfalse\n```\n"
    )
    ended = blocks.run_apart(page)
    assert ended.returncode == 0, ended.stdout
    assert "bash: not run: it needs a GPU" in ended.stdout
    for wrong in ("```bash\nfalse\necho not reached\n```\n", "```python\nundefined\n```\n"):
        page.write_text(wrong)
        ended = blocks.run_apart(page)
        assert ended.returncode == 1
        assert "FAILED" in ended.stdout
    page.write_text("<!-- not run: -->\n```bash\nfalse\n```\n")
    with pytest.raises(ValueError, match="needs a reason"):
        blocks.blocks(page)


def test_flags_are_added_to_the_commands_that_have_them() -> None:
    flags = "--total-steps 5 --trials 2"
    assert blocks.with_added_flags(["eval", "runs/a"], flags) == ["eval", "runs/a"]
    assert blocks.with_added_flags(["train", "ppo", "CartPole-v1"], flags)[3:] == ["--total-steps", "5"]
    assert blocks.with_added_flags(["sweep", "a2c", "CartPole-v1"], flags)[3:] == flags.split()


@pytest.mark.parametrize("name", ["my_dqn:MyDQN", pytest.param("my_n_step:NStepDQN", marks=pytest.mark.full)])
def test_the_algorithms_of_write_your_own_compute_the_same_in_fragments(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the three distribution policies that the page shows."""
    for block in blocks.blocks(ROOT / "docs" / "write-your-own.md"):
        if file := block.notes.get("file"):
            with (tmp_path / file).open("a") as module:
                module.write(block.code)
    monkeypatch.syspath_prepend(tmp_path)
    module, _, kind = name.partition(":")
    small = {"num_envs": 4, "horizon": 8, "rows": 20, "learning_starts": 16, "updates": 3, "hidden": (8,)}
    algorithm, env = getattr(importlib.import_module(module), kind)(**small), fragmenta.make("CartPole-v1")
    expected, metrics = plain(algorithm, env, 4)  # the first without an update, the third beyond the end of the ring
    assert int(expected.learner.updates) == 9
    for policy, devices in {"fused": 2, "single_learner_coarse": 3, "replay": 5}.items():
        plan = planned(algorithm, env, policy, cpu_cluster(devices, 2), merge=False)
        actual, actual_metrics = run_plan(plan, algorithm, env, 4)
        assert_same(expected, actual, 1e-5)
        assert_same(metrics, actual_metrics, 1e-5, floor=1.0)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PAGES)
def test_pages_run(name: str) -> None:
    ended = blocks.run_apart(PAGES[name])
    print(ended.stdout)
    assert ended.returncode == 0
