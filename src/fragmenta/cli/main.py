"""The command line: `fragmenta COMMAND ...`, one module per command."""

import importlib
import multiprocessing
import os
import select
import signal
import sys

from fragmenta.command import command
from fragmenta.engines.errors import RemoteError
from fragmenta.errors import ConfigError, StorageError, unknown
from fragmenta.runs.remarks import made_so_far
from fragmenta.training.stopping import NotFiniteError, StoppedError
from fragmenta.version import __version__
from fragmenta_core.faults import EnvironmentFaultError

COMMANDS = {
    "train": "train an algorithm on an environment, under a distribution policy",
    "sweep": "search for good hyper-parameters, many trials in one program",
    "zoo": "train recipes with known results, and check that they are reached",
    "resume": "continue a run from its latest checkpoint, under any distribution policy",
    "runs": "list the runs in a folder, and which are running",
    "eval": "evaluate the policy of a run",
    "play": "record a video of the policy of a run",
    "compare": "compare runs: a table, and a picture with confidence intervals over seeds",
    "report": "write an HTML report on a run: curves, losses, graph, settings",
    "export": "export the policy of a run to files that work without Fragmenta",
    "graph": "show the fragmented dataflow graph under a distribution policy",
    "verify": "check that distribution policies give the result of the plain program",
    "trace": "show where the time of a run goes: a timeline of its fragments, and a table",
    "check-env": "check an environment: whether it is sound, how fast, and which distribution policies can host it",
    "plan": "predict the speed of distribution policies, here or on machines that are only described, and choose one",
    "policies": "list the distribution policies",
    "doctor": "show the hardware and software of this machine, and whether JAX uses it",
    "completion": "print a script that completes commands and flags in bash or zsh",
}

_READER_GONE = 128 + signal.SIGPIPE
"""The exit code of a program whose reader has ended."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; a user error prints one line on standard error and exits with code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        try:
            code = _run(arguments)
        except SystemExit as stop:  # after printing help
            if isinstance(stop.__context__, BrokenPipeError):  # rich turns it into this
                return _READER_GONE
            sys.stdout.flush()
            raise
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        if not _reader_has_ended():
            raise
        return _READER_GONE
    finally:
        for process in multiprocessing.active_children():
            process.kill()  # left by an environment that was stepped here: Python would wait for its end


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(f"fragmenta {__version__}")
        return 0
    # Find a user's own modules in the current directory, as `python -m` does.
    sys.path.insert(0, "")
    made_so_far()
    try:
        if arguments[0] not in COMMANDS:
            raise unknown("command", arguments[0], COMMANDS)
        return importlib.import_module(f"fragmenta.cli.{arguments[0].replace('-', '_')}").run(arguments[1:])
    except ConfigError as error:
        print(f"fragmenta: {error}", file=sys.stderr)
        return 2
    except StoppedError as stopped:
        print(f"fragmenta: {stopped}", file=sys.stderr)
        return stopped.exit_code
    except (NotFiniteError, StorageError) as error:
        print(f"fragmenta: {error}", file=sys.stderr)
        return 1
    except (EnvironmentFaultError, RemoteError) as error:
        print(f"{error.trace}fragmenta: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("fragmenta: interrupted", file=sys.stderr)
        return 130
    finally:
        for line in made_so_far():
            print(f"fragmenta: {line}", file=sys.stderr)


def _reader_has_ended() -> bool:
    """Whether standard output is a pipe whose reader has ended, as `head` does; then the rest of it is dropped."""
    output = select.poll()
    output.register(sys.stdout.fileno(), select.POLLOUT)
    has_ended = any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0))
    if has_ended:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return has_ended


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {command()} {name.ljust(width)}  {text}" for name, text in COMMANDS.items()]
    examples = [f"  {command()} {example}" for example in _EXAMPLES]
    title = "Distributed reinforcement learning with dataflow fragments."
    return "\n".join([title, "", *lines, "", "Start with:", *examples])


_EXAMPLES = (
    "train ppo CartPole-v1",
    "train ppo CartPole-v1 --policy single_learner_coarse --replicas 2 --no-merge",
    "train ppo --help",
)


if __name__ == "__main__":
    sys.exit(main())
