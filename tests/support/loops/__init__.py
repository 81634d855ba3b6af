"""Training loops as users write them: plain JAX, without any regard for replicas.

Each is defined by `jax.jit(iterate)`. They are numerically stable: a few iterations with another order of float sums
stay within 1e-5.
"""

from fragmenta import Algorithm, Environment, make
from loops.control_flow import BranchingLoop, NestedLoops, StringArgument
from loops.dqn import DQN, RingsDQN, SliceDQN
from loops.dreamer import Dreamer
from loops.odd_state import OddState, WeakState
from loops.policy_gradient import EvaluatingLoop, NormalizedLoop
from loops.population import Population, SelfPlay
from loops.ppo import GluePPO, NestedPPO, TrainStatePPO
from loops.reinforce import Corridor, Reinforce
from loops.sac import SAC
from loops.search import EvolutionStrategies, RandomSearch
from loops.statistics import StatisticsA2C
from loops.transforms import Transforms

CARTPOLE, PENDULUM = make("CartPole-v1"), make("Pendulum-v1")

LOOPS: dict[str, tuple[Algorithm, Environment]] = {
    "ppo": (TrainStatePPO(), CARTPOLE),
    "ppo_nested": (NestedPPO(), CARTPOLE),
    "ppo_glue": (GluePPO(epochs=1, minibatches=2), CARTPOLE),
    "dqn": (DQN(), CARTPOLE),
    "dqn_slices": (SliceDQN(), CARTPOLE),
    "dqn_rings": (RingsDQN(), CARTPOLE),
    "sac": (SAC(), PENDULUM),
    "evolution": (EvolutionStrategies(), PENDULUM),
    "random_search": (RandomSearch(), PENDULUM),
    "reinforce": (Reinforce(), Corridor()),
    "population": (Population(), PENDULUM),
    "self_play": (SelfPlay(), PENDULUM),
    "dreamer": (Dreamer(), PENDULUM),
    "evaluating": (EvaluatingLoop(), CARTPOLE),
    "normalized": (NormalizedLoop(), CARTPOLE),
    "odd_state": (OddState(), CARTPOLE),
    "weak_state": (WeakState(), CARTPOLE),
    "nested_loops": (NestedLoops(), PENDULUM),
    "branching": (BranchingLoop(), PENDULUM),
    "string_argument": (StringArgument(), PENDULUM),
    "statistics": (StatisticsA2C(), CARTPOLE),
    "transforms": (Transforms(), CARTPOLE),
}

WITH_GRADIENTS = ("ppo_nested", "dqn_rings", "sac", "statistics", "transforms")
"""Loops with the stages `gradient` and `apply`, which the distribution policy `central` places."""
