"""How the user called this program, for commands in messages that work as printed."""

import os
import shlex
import shutil
import sys

NAME = "fragmenta"


def command(*arguments: object) -> str:
    """A command line of this program: by its name if the shell finds it, else by the path that it was called with."""
    invoked, installed = sys.argv[0], shutil.which(NAME)
    by_path = os.path.basename(invoked) == NAME and os.sep in invoked
    if by_path and (installed is None or not os.path.exists(invoked) or not os.path.samefile(invoked, installed)):
        name = shlex.quote(invoked)
    else:
        name = NAME
    return " ".join([name, *(shlex.quote(str(argument)) for argument in arguments)])
