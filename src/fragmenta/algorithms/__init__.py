"""Algorithms by name."""

from fragmenta.algorithms.a2c import A2C
from fragmenta.algorithms.actor_critic import ActorCritic
from fragmenta.algorithms.axis import Axis
from fragmenta.algorithms.base import Algorithm
from fragmenta.algorithms.dqn import DQN
from fragmenta.algorithms.impala import IMPALA
from fragmenta.algorithms.maddpg import MADDPG
from fragmenta.algorithms.mappo import IPPO, MAPPO
from fragmenta.algorithms.ppo import PPO
from fragmenta.algorithms.pqn import PQN
from fragmenta.algorithms.r2d2 import R2D2
from fragmenta.algorithms.recurrent_ppo import LSTMPPO, RecurrentPPO, TransformerPPO
from fragmenta.algorithms.reinforce import REINFORCE
from fragmenta.algorithms.sac import SAC
from fragmenta.algorithms.sac_discrete import DiscreteSAC
from fragmenta.algorithms.td3 import DDPG, TD3, FastTD3
from fragmenta.algorithms.vdn import QMIX, VDN

ALGORITHMS: dict[str, type[Algorithm]] = {
    "ppo": PPO,
    "ppo_gru": RecurrentPPO,
    "ppo_lstm": LSTMPPO,
    "ppo_transformer": TransformerPPO,
    "a2c": A2C,
    "reinforce": REINFORCE,
    "impala": IMPALA,
    "mappo": MAPPO,
    "ippo": IPPO,
    "vdn": VDN,
    "qmix": QMIX,
    "maddpg": MADDPG,
    "dqn": DQN,
    "pqn": PQN,
    "r2d2": R2D2,
    "ddpg": DDPG,
    "td3": TD3,
    "fast_td3": FastTD3,
    "sac": SAC,
    "sac_discrete": DiscreteSAC,
}

__all__ = [
    "A2C",
    "ALGORITHMS",
    "DDPG",
    "DQN",
    "IMPALA",
    "IPPO",
    "LSTMPPO",
    "MADDPG",
    "MAPPO",
    "PPO",
    "PQN",
    "QMIX",
    "R2D2",
    "REINFORCE",
    "SAC",
    "TD3",
    "VDN",
    "ActorCritic",
    "Algorithm",
    "Axis",
    "DiscreteSAC",
    "FastTD3",
    "RecurrentPPO",
    "TransformerPPO",
]
