"""Episodes of environments on the host, which other processes have: begun at the start and after a loss."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fragmenta.engines.base import Setup
from fragmenta.engines.control import FailedError, LostError
from fragmenta.engines.crew import Crew
from fragmenta.engines.errors import shown
from fragmenta.engines.remote_pool import RemotePool
from fragmenta.engines.replica import hosts_environments
from fragmenta.envs import Environment, HostEnvironment


class EpisodeStarts:
    """Begins episodes, and knows the state to go on from where they cannot be put back."""

    def __init__(self, setup: Setup, crew: Crew) -> None:
        self._setup, self._crew = setup, crew
        self._hosts = [i for i, (program, _) in enumerate(crew.places) if hosts_environments(program)]
        self._failure: LostError | FailedError | None = None
        self.env = self._seen_from_here(self._hosts)
        """The environment to initialise the state with."""

    def renewed(self, leaves: list[Any], salt: Sequence[int], only: int | None = None) -> list[Any]:
        """The state to go on from: environments on the host begin new episodes, all of them or those of process `only`.

        What the state then says of the others is not so. `salt` makes them other episodes than before.
        """
        hosts = self._hosts if only is None else [i for i in self._hosts if i == only]
        if not hosts or not isinstance(self._setup.env, HostEnvironment):
            return leaves
        env = self._seen_from_here(hosts)
        key = functools.reduce(jax.random.fold_in, salt, jax.random.key(self._setup.seed))
        algorithm, self._failure = self._setup.algorithm, None
        try:
            fresh = jax.jit(lambda key: algorithm.init(env, key))(key)
        except Exception:
            if self._failure is None:
                raise
            self._tell(None)  # it is for the engine to say what becomes of it
            raise self._failure from None
        saved = jax.tree.unflatten(jax.tree.structure(fresh), leaves)
        return jax.tree.leaves(algorithm.with_new_episodes(saved, fresh))

    def restarted(self, count: int) -> None:
        """Keep how many environments were started anew, for whoever sums up the run."""
        if isinstance(self._setup.env, HostEnvironment):
            self._setup.env.pool.restarted = count

    def _seen_from_here(self, which: list[int]) -> Environment:
        env = self._setup.env
        if not isinstance(env, HostEnvironment):
            return env
        return dataclasses.replace(env, pool=RemotePool(env.pool, functools.partial(self._reset, which)))

    def _reset(self, which: list[int], seeds: np.ndarray) -> list[list[np.ndarray]]:
        """Start episodes in the environments of these processes; per process what `Replica.reset` answers."""
        patience = self._crew.patience + 2 * self._crew.longest_step(which[0])  # they are made first
        peers, parts = self._crew.peers, dict(zip(self._hosts, np.split(seeds, len(self._hosts)), strict=True))
        try:
            numbers = [(peers[i], peers[i].order("reset", [parts[i]])) for i in which]
            found = dict(zip(which, (peer.answer(n, patience)[1] for peer, n in numbers), strict=True))
        except (LostError, FailedError) as failure:
            self._failure = failure
            self._tell(shown(failure))
            raise
        return [found.get(i, found[which[0]]) for i in self._hosts]

    def _tell(self, failure: BaseException | None) -> None:
        """Say what training is to raise: JAX makes another error of what a callback raises."""
        if isinstance(self.env, HostEnvironment):
            self.env.pool.failure = failure
