"""Starts episodes of host environments in other processes: at the beginning and after a loss."""

import functools
import pickle
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fragmenta.engines.base import Setup
from fragmenta.engines.control import FailedError, LostError
from fragmenta.engines.crew import Crew
from fragmenta.engines.errors import user_error
from fragmenta.engines.remote_pool import RemotePool
from fragmenta.engines.replica import hosts_environments
from fragmenta.envs import Environment
from fragmenta_host.episodes import Episodes


class EpisodeStarts:
    """Starts episodes, and computes the state to resume from if host environments cannot be restored."""

    def __init__(self, setup: Setup, crew: Crew) -> None:
        self._setup, self._crew = setup, crew
        self._hosts = [i for i, (program, _) in enumerate(crew.places) if hosts_environments(program)]
        self._failure: LostError | FailedError | None = None
        self.env = self._remote_env(self._hosts)
        """The environment to initialise the state with."""

    def renewed_state(self, leaves: list[Any], salt: Sequence[int], only: Sequence[int] = ()) -> list[Any]:
        """The state to resume from: all host environments, or those of processes `only`, start new episodes.

        With `only`, the entries of the other processes' environments are not valid. `salt` makes the new episodes
        differ from earlier ones.
        """
        hosts = [i for i in self._hosts if i in only] if only else self._hosts
        if not hosts or self._setup.env.is_replayable:
            return leaves
        env = self._remote_env(hosts)
        key = functools.reduce(jax.random.fold_in, salt, jax.random.key(self._setup.seed))
        algorithm, self._failure = self._setup.algorithm, None

        @jax.jit
        def renewed(key: jax.Array, saved: list[Any]) -> list[Any]:
            """Leaves that stay in the processes are None, and those of the new state are not computed."""
            fresh = algorithm.init(env, key)
            new, structure = jax.tree.flatten(fresh)
            whole = [new[i] if leaf is None else leaf for i, leaf in enumerate(saved)]
            state = algorithm.with_new_episodes(jax.tree.unflatten(structure, whole), fresh)
            return [None if saved[i] is None else leaf for i, leaf in enumerate(jax.tree.leaves(state))]

        try:
            return renewed(key, jax.device_put(leaves, jax.devices()[0]))  # a replay may be in host memory
        except Exception:
            if self._failure is None:
                raise
            self._set_failure(None)  # the engine decides how to handle it
            raise self._failure from None

    def current(self) -> list[Episodes]:
        """The environments of all processes, in the middle of their episodes; RuntimeError if they cannot be had."""
        if not all(self._crew.peers[i].hello["holds_up"] for i in self._hosts):
            raise RuntimeError("environments are in processes of their own")
        answers = self._crew.ask({i: {} for i in self._hosts}, "episodes", self._crew.patience)
        return [pickle.loads(answers[i][1][0].tobytes()) for i in self._hosts]

    def set_restarts(self, count: int) -> None:
        """Store the number of environment restarts, for the summary of the run."""
        if self._setup.env.host_pool:
            self._setup.env.host_pool.restarted = count

    def _remote_env(self, hosts: list[int]) -> Environment:
        env = self._setup.env
        if not env.host_pool:
            return env
        return env.through(RemotePool(env.host_pool, functools.partial(self._reset, hosts)))

    def _reset(self, hosts: list[int], seeds: np.ndarray) -> list[list[np.ndarray]]:
        """Start episodes in the environments of these processes; returns the answers of `ReplicaProcess.reset`."""
        patience = self._crew.patience + 2 * self._crew.longest_step(hosts[0])  # the environments are created first
        peers, parts = self._crew.peers, dict(zip(self._hosts, np.split(seeds, len(self._hosts)), strict=True))
        try:
            numbers = [(peers[i], peers[i].order("reset", [parts[i]])) for i in hosts]
            answers = dict(zip(hosts, (peer.answer(n, patience)[1] for peer, n in numbers), strict=True))
        except (LostError, FailedError) as failure:
            self._failure = failure
            self._set_failure(user_error(failure))
            raise
        return [answers.get(i, answers[hosts[0]]) for i in self._hosts]

    def _set_failure(self, failure: BaseException | None) -> None:
        """Set the error that training raises: JAX would wrap an exception of a callback in another type."""
        if self.env.host_pool:
            self.env.host_pool.failure = failure
