"""From a training loop and a policy to programs: trace, place, project, dispatch."""
