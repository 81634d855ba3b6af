"""Run the code of the pages, so that what they show works: `python docs/blocks.py [PAGE...]`, all pages by default.

The `python` blocks of a page run in order in one namespace, and its `bash` blocks in order with them, all in one empty
directory. A comment right before a block, invisible to readers, says what is different about it:

    <!-- run: --total-steps 2048 -->     flags added to every command of the block that has them
    <!-- run: total_steps=2048 -->       in Python: the value of this keyword, wherever it is passed
    <!-- file: my_module.py -->          written to this file instead of run, also a `text` block; several such blocks
                                         make up one file
    <!-- setup ... -->                   with a block inside the comment: run, but not shown
    <!-- not run: it needs a GPU -->     not run, for this reason
"""

import ast
import contextlib
import dataclasses
import importlib
import io
import itertools
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LANGUAGES = ("bash", "python")
LIMIT_S = 900
"""How long a block of commands may take."""
ADDED_FLAGS = "FRAGMENTA_DOCUMENTATION_FLAGS"
NOTE = re.compile(r"(not run|run|file|setup)\b:?\s*(.*)", re.DOTALL)
FENCE = re.compile(r"^( *)```(\w*)\s*$")
NAMED = ("resume", "eval", "play", "export", "trace", "check-env")
"""Commands that begin with the name of a run or an environment."""


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of a page, and what the comments before it say."""

    page: Path
    line: int
    """Where its code begins."""
    language: str
    code: str
    notes: dict[str, str]

    @property
    def place(self) -> str:
        """The page and the line."""
        return f"{os.path.relpath(self.page, ROOT)}:{self.line}"


def pages() -> list[Path]:
    """All pages with blocks to run."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page in order, those in comments of the form `<!-- setup ... -->` included."""
    found: list[Block] = []
    notes: dict[str, str] = {}
    lines = enumerate(page.read_text().splitlines(), start=1)
    for number, line in lines:
        if line.lstrip().startswith("<!--"):
            comment = _until(lines, line, lambda text: "-->" in text)
            text = "\n".join(comment).strip().removeprefix("<!--").removesuffix("-->").strip()
            if match := NOTE.match(text):
                notes[match[1]] = match[2].strip()
            if "setup" in notes and "```" in text:
                start = next(i for i, inner in enumerate(comment) if FENCE.match(inner))
                end = next(i for i, inner in enumerate(comment) if i > start and inner.strip() == "```")
                language = FENCE.match(comment[start])[2]  # pyright: ignore[reportOptionalSubscript]
                code = "\n".join(comment[start + 1 : end]) + "\n"
                found.append(Block(page, number + start + 1, language, code, {"setup": ""}))
                notes = {}
        elif fence := FENCE.match(line):
            inside = _until(lines, "", lambda text: text.strip() == "```")[1:-1]
            code = textwrap.dedent("\n".join(inside)) + "\n"
            found.append(Block(page, number + 1, fence[2], code, notes))
            notes = {}
        elif line.strip():
            notes = {}
    for block in found:
        if block.notes.get("not run") == "":
            raise ValueError(f"{block.place}: 'not run' needs a reason")
    return found


def _until(lines: Iterator[tuple[int, str]], first: str, is_last: Any) -> list[str]:
    taken = [first]
    while not is_last(taken[-1]):
        taken.append(next(lines)[1])
    return taken


def commands(block: Block) -> Iterator[list[str]]:
    """The arguments of every `fragmenta` command in a block of shell commands."""
    for line in block.code.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        for is_operator, words in itertools.groupby(lexer, lambda word: set(word) <= set("();<>|&")):
            command = list(itertools.dropwhile(lambda word: re.match(r"\w+=", word), words))
            if "--" in command and command[0] != "fragmenta":  # run by another program: kubectl exec POD -- fragmenta
                command = command[command.index("--") + 1 :]
            if not is_operator and command[:1] == ["fragmenta"]:
                yield command[1:]


def check_command(arguments: list[str]) -> set[str]:
    """Parse a command line as the command does, without running it: ConfigError if it is wrong, else its flags."""
    from fragmenta.algorithms import Algorithm
    from fragmenta.algorithms.named import algorithm_class
    from fragmenta.cli.completion import WITH_ALGORITHM, WITH_FLAGS
    from fragmenta.cli.graph import DrawingOptions
    from fragmenta.cli.main import COMMANDS
    from fragmenta.cli.parsing import flag_names, parse
    from fragmenta.errors import unknown

    name, *rest = arguments
    if name in ("--help", "--version"):
        return set()
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    module = importlib.import_module(f"fragmenta.cli.{name.replace('-', '_')}")
    options: Any = getattr(module, {**WITH_ALGORITHM, **WITH_FLAGS}[name])
    names = list(itertools.takewhile(lambda word: not word.startswith("-"), rest))
    rest = [word for word in rest if word != "--help"]
    if name == "graph" and len(names) == 1:  # of a run
        options, rest = DrawingOptions, rest[1:]
    elif name in NAMED:
        rest = rest[1:]
    elif name in WITH_ALGORITHM:
        own = not names or ":" in names[0]
        algorithm = Algorithm if own else algorithm_class(names[0])
        options = dataclasses.make_dataclass("Flags", [("hyper_parameters", algorithm), ("options", options)])
        rest = rest[len(names[:2]) :]
        if own:  # with hyper-parameters that only its class knows
            rest = [word for group in _groups(rest) if group[0] in flag_names(options) for word in group]
    parse(options, rest, "fragmenta")
    return flag_names(options)


def with_added_flags(arguments: list[str], flags: str) -> list[str]:
    """A command line with those of the flags that its command has."""
    added = _groups(shlex.split(flags))
    known = check_command(arguments) if added else set()
    return [*arguments, *(word for group in added if group[0] in known for word in group)]


def _groups(words: list[str]) -> list[list[str]]:
    """Flags, each with its values."""
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            groups.append([*word.split("=", 1)])
        else:
            groups[-1].append(word)
    return groups


def parsed_python(block: Block) -> ast.Module:
    """The code with its lines numbered as in the page, and keywords replaced as the comment before it says."""
    tree = ast.parse(block.code, block.place)
    for name, value in re.findall(r"(\w+)=(\S+)", block.notes.get("run", "")):
        passed = [node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == name]
        if not passed:
            raise ValueError(f"{block.place}: no keyword '{name}' is passed in this block")
        for keyword in passed:
            keyword.value = ast.copy_location(ast.parse(value, mode="eval").body, keyword.value)
    return ast.increment_lineno(ast.fix_missing_locations(tree), block.line - 1)


def run_page(page: Path) -> int:
    """Run the blocks of a page in the current directory, and print how each ends; the exit code is 1 if one fails."""
    failed = 0
    for block in blocks(page):
        if block.language not in LANGUAGES and "file" not in block.notes:
            continue
        started, problem = time.monotonic(), ""
        if "not run" in block.notes:
            outcome = f"not run: {block.notes['not run']}"
        else:
            problem = _problem_of(block)
            outcome = f"{'FAILED' if problem else 'ok'} after {time.monotonic() - started:.1f} s"
        print(f"{block.place} {block.language}: {outcome}\n{textwrap.indent(problem, '    ')}", end="", flush=True)
        failed += bool(problem)
    return min(failed, 1)


def _problem_of(block: Block) -> str:
    """What went wrong, or nothing."""
    if "file" in block.notes:
        with Path(block.notes["file"]).open("a") as file:
            file.write(block.code)
        importlib.invalidate_caches()
        return ""
    printed = io.StringIO()
    try:
        if block.language == "python":
            code = compile(parsed_python(block), str(block.page), "exec")
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                exec(code, vars(sys.modules["__main__"]))
            return ""
        environment = {**os.environ, ADDED_FLAGS: block.notes.get("run", "")}
        command = ["bash", "-euo", "pipefail", "-c", block.code]
        ended = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S
        )
    except BaseException:  # a block may also call sys.exit
        return f"{printed.getvalue()[-4000:]}{traceback.format_exc()}"
    return f"{ended.stdout[-4000:]}\nexit code {ended.returncode}\n" if ended.returncode else ""


PROGRAM = f"""\
#!{sys.executable}
import os, sys
from blocks import ADDED_FLAGS, with_added_flags
from fragmenta.cli.main import main
sys.exit(main(with_added_flags(sys.argv[1:], os.environ.pop(ADDED_FLAGS, ""))))
"""
"""`fragmenta`, as the blocks call it."""


def run_apart(page: Path, output: int | None = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Run a page in a process and a directory of its own; the output, None for that of this process, tells how each
    block ends."""
    with tempfile.TemporaryDirectory() as folder:
        programs, place = Path(folder, "bin"), Path(folder, "page")
        programs.mkdir()
        place.mkdir()
        (programs / "fragmenta").write_text(PROGRAM)
        (programs / "fragmenta").chmod(0o755)
        found = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
        modules = [str(ROOT / "src"), str(Path(__file__).parent)]
        environment = {**os.environ, "PATH": os.pathsep.join(found), "PYTHONPATH": os.pathsep.join(modules)}
        code = f"import sys, pathlib, blocks; sys.exit(blocks.run_page(pathlib.Path({str(page)!r})))"
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=place,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )


def main(names: list[str]) -> int:
    """Run the pages with these names; the exit code is 1 if a block fails."""
    chosen = [Path(name).resolve() for name in names] or pages()
    codes = [run_apart(page, output=None).returncode for page in chosen]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
