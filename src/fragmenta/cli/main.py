"""The command line: `fragmenta COMMAND ...`, one module per command."""

import importlib
import sys

from fragmenta.engines.errors import RemoteError
from fragmenta.errors import ConfigError, StorageError, unknown
from fragmenta.training.stopping import NotFiniteError, StoppedError
from fragmenta_core.faults import EnvironmentFaultError

COMMANDS = {
    "train": "train an algorithm on an environment under a policy",
    "sweep": "search for good hyper-parameters, many trials in one program",
    "resume": "continue a run from its latest checkpoint, under any policy",
    "eval": "evaluate the policy of a run",
    "play": "record a video of the policy of a run",
    "compare": "compare runs: a table, and a picture with confidence intervals over seeds",
    "report": "write an HTML report on a run: curves, losses, graph, settings",
    "export": "export the policy of a run to files that work without Fragmenta",
    "graph": "show the fragmented dataflow graph under a policy",
    "verify": "check that policies give the result of the plain program",
    "trace": "show where the time of a run goes: a timeline of its fragments, and a table",
    "check-env": "check whether an environment is sound, how fast it is, and which policies can host it",
    "policies": "list the distribution policies",
    "doctor": "show the hardware and software of this machine, and whether JAX uses it",
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; a user error prints one line on standard error and exits with code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0 if arguments else 2
    # Find a user's own modules in the current directory, as `python -m` does.
    sys.path.insert(0, "")
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


def _usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  fragmenta {name.ljust(width)}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(["Distributed reinforcement learning with dataflow fragments.", "", *lines, "", _EXAMPLES])


_EXAMPLES = """\
Start with:
  fragmenta train ppo CartPole-v1
  fragmenta train ppo CartPole-v1 --policy single_learner_coarse --replicas 2 --no-merge
  fragmenta train ppo --help"""


if __name__ == "__main__":
    sys.exit(main())
