"""A distribution policy that only the coordinating process can import; the others cannot."""

import sys

from fragmenta.policies import POLICIES

if getattr(sys.modules["__main__"].__spec__, "name", "") == "fragmenta_launch.child":
    raise ModuleNotFoundError("No module named 'only_here'", name="only_here")
policy = POLICIES["single_learner_coarse"]
