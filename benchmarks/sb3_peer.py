"""Stable-Baselines3's side of `environments.py`: environment steps per second of its PPO in steady state."""

import argparse
import time

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from sides import BATCH, HORIZON, MINIBATCHES, NUM_ENVS, answer, steady_rate


class Marks(BaseCallback):
    """Records the start of each iteration, and ends the run after `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.marks: list[tuple[float, int]] = []

    def _on_rollout_start(self) -> None:
        self.marks.append((time.perf_counter(), self.num_timesteps))

    def _on_step(self) -> bool:
        return len(self.marks) < 4 or self.marks[-1][0] - self.marks[0][0] < self.seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("env")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--vector", choices=("dummy", "subproc"), default="dummy")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kind = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}[options.vector]
    envs = make_vec_env(options.env, NUM_ENVS, vec_env_cls=kind, env_kwargs={"disable_env_checker": True})
    # Its default is two networks of 64 x 64 tanh.
    model = PPO("MlpPolicy", envs, n_steps=HORIZON, n_epochs=4, batch_size=BATCH // MINIBATCHES, device="cpu")
    marks = Marks(options.seconds)
    model.learn(total_timesteps=10**12, callback=marks)
    envs.close()
    answer(steady_rate(marks.marks))


if __name__ == "__main__":
    main()
