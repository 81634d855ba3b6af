"""How the user called this program, for commands in messages that work as printed."""

import os
import shlex
import shutil
import sys

NAME = "fragmenta"


def command(*arguments: object) -> str:
    """A command line of this program: by its name if the shell finds it, else by the path that it was called with."""
    called, found = sys.argv[0], shutil.which(NAME)
    by_path = os.path.basename(called) == NAME and os.sep in called
    if by_path and (found is None or not os.path.exists(called) or not os.path.samefile(called, found)):
        name = shlex.quote(called)
    else:
        name = NAME
    return " ".join([name, *(shlex.quote(str(argument)) for argument in arguments)])
