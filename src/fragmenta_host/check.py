"""Runs Gymnasium's and PettingZoo's own checkers and returns their complaints as a list."""

import io
import re
import warnings
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from fragmenta_core.spaces import MASK, Discrete, MultiDiscrete, leaves
from fragmenta_host.single import Single


def complaints(env: Single) -> list[str]:
    """The complaints of the package's own checker, one line each; the checker may stop at the first."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("always")
        try:
            _check(env)
        except Exception as error:
            messages.append(f"{type(error).__name__}: {error}")
    messages += [str(warning.message) for warning in caught if not issubclass(warning.category, DeprecationWarning)]
    lines = (re.sub(r"\x1b\[[0-9;]*m|\s+", " ", text).replace("WARN:", "").strip() for text in messages)
    return list(dict.fromkeys(line for line in lines if not any(harmless in line for harmless in _HARMLESS)))


_HARMLESS = (
    "is different from the unwrapped version",  # wrappers are requested by the user
    "Box observation space minimum value is -infinity",
    "Box observation space maximum value is infinity",
    "symmetric and normalized",  # actions are clipped, not scaled
)


def _check(env: Any) -> None:
    if type(env).__name__ == "PettingZooEnv":
        from pettingzoo.test import parallel_api_test

        parallel_api_test(env.env, num_cycles=100)
        return
    from gymnasium.utils.env_checker import check_env

    from fragmenta_host.masks import LegalActions

    parts = [name for name, _, _ in leaves(env.description.observation)]
    has_masks = MASK in parts and isinstance(env.description.action, Discrete | MultiDiscrete)
    check_env(LegalActions(env.env) if has_masks else env.env, skip_render_check=True, skip_close_check=True)
