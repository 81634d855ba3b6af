"""A predictor for an algorithm on an environment: on this machine, or on machines that are only described."""

import functools
from collections.abc import Sequence
from typing import Any

import jax

from fragmenta.algorithms import Algorithm
from fragmenta.engines.in_place import in_place
from fragmenta.engines.initial import initial_state
from fragmenta.engines.this_machine import this_machine
from fragmenta.envs import Environment
from fragmenta.graph import Graph
from fragmenta.planner.candidates import Candidate
from fragmenta.planner.contention import available_cores
from fragmenta.planner.costs import Cost
from fragmenta.planner.hosting import stepping_cost
from fragmenta.planner.profile import Profile
from fragmenta.planner.search import Predictor
from fragmenta.policies.machines import Machines
from fragmenta.tracing.iteration import steps_per_iteration


def predictor(
    algorithm: Algorithm,
    env: Environment,
    graph: Graph,
    profile: Profile,
    machines: Machines | None = None,
    step: Cost | None = None,
) -> Predictor:
    """Predicts candidates for machines, by default the one at hand. For others everything is estimated, but for the
    environments on the host, which are taken to be as fast as here unless the cost of a lane's step is given. Of the
    cores of the machine at hand, it counts what other processes leave."""

    @functools.cache
    def state() -> Sequence[Any]:
        unknown = [None] * len(graph.state_inputs)
        if env.host_pool:
            return unknown  # resetting environments takes longer than it is worth
        return jax.tree.leaves(initial_state(algorithm, env, jax.random.key(0), in_place=in_place(graph)))

    @functools.cache
    def lane_cost(lanes: int, is_apart: bool, mode: str | None) -> Cost | None:
        assert env.host_pool is not None
        count = algorithm.num_envs // lanes if is_apart else algorithm.num_envs
        pool = env.host_pool.twin(mode) if mode else env.host_pool
        return stepping_cost(pool, count, 1 if is_apart else lanes, is_apart)

    def stepping(candidate: Candidate, quickly: bool) -> Cost | None:
        if env.host_pool is None or step:
            return step
        lanes = candidate.plan.lanes
        return (
            Cost(env.host_pool.step_seconds * algorithm.num_envs / lanes)
            if quickly
            else lane_cost(lanes, candidate.is_apart, candidate.env_mode)
        )

    def steps(candidate: Candidate) -> int:
        declared = candidate.plan.graph.steps is None
        return steps_per_iteration(algorithm, candidate.plan.graph.steps) // (
            candidate.plan.arrivals if declared else 1
        )

    is_here = machines is None
    shares = available_cores() if is_here else ()
    return Predictor(profile, machines or this_machine(), is_here, state, stepping, steps, shares)
