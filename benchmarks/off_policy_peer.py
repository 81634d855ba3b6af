"""The peers' side of `off_policy.py`: gradient steps and environment steps per second of one library and algorithm.

Runs in a virtual environment of the peers: `python off_policy_peer.py sb3-1|sb3-2|rejax sac|dqn SECONDS`, where the
number is that of PyTorch's threads.
"""

import sys
import time

from sides import answer

SAC_SIZES = {"batch": 256, "buffer": 100_000, "width": 256}
DQN_SIZES = {"batch": 32, "buffer": 50_000, "width": 64}


def sb3(name: str, seconds: float, threads: int) -> None:
    """Stable-Baselines3 with its defaults: one environment, for SAC a gradient step per step, for DQN one per four."""
    import torch
    from stable_baselines3 import DQN, SAC
    from stable_baselines3.common.callbacks import BaseCallback

    class Marks(BaseCallback):
        """Notes when learning is under way, and ends after the given time."""

        began = 0.0
        steps = 0

        def _on_step(self) -> bool:
            if not self.began and self.num_timesteps >= 1_500:
                self.began, self.steps = time.perf_counter(), self.num_timesteps
            return not self.began or time.perf_counter() - self.began < seconds

    torch.set_num_threads(threads)
    if name == "sac":
        model = SAC("MlpPolicy", "Pendulum-v1", learning_starts=1_000, buffer_size=SAC_SIZES["buffer"], device="cpu")
    else:
        sizes = {"batch_size": DQN_SIZES["batch"], "buffer_size": DQN_SIZES["buffer"]}
        model = DQN("MlpPolicy", "CartPole-v1", learning_starts=1_000, device="cpu", **sizes)
    marks = Marks()
    model.learn(10**9, callback=marks)
    steps = (model.num_timesteps - marks.steps) / (time.perf_counter() - marks.began)
    answer(steps, gradient_steps=steps if name == "sac" else steps / 4)


def rejax(name: str, _: float) -> None:
    """rejax, whole runs as one program; the difference of two lengths is time of training alone."""
    import jax
    from rejax import DQN, SAC

    def trained(iterations: int) -> float:
        steps = 8 * iterations + 1_000
        common = {"num_envs": 8, "total_timesteps": steps, "eval_freq": steps, "skip_initial_evaluation": True}
        if name == "sac":
            sizes = {"batch_size": SAC_SIZES["batch"], "buffer_size": SAC_SIZES["buffer"], "fill_buffer": 1_000}
            # Not among `agent_kwargs`, where it is replaced by 64 x 64 without a word.
            layers = {"hidden_layer_sizes": (SAC_SIZES["width"],) * 2}
            algorithm = SAC.create(env="Pendulum-v1", num_epochs=8, **layers, **sizes, **common)
            assert algorithm.actor.hidden_layer_sizes == algorithm.critic.hidden_layer_sizes == tuple(*layers.values())
        else:
            sizes = {"batch_size": DQN_SIZES["batch"], "buffer_size": DQN_SIZES["buffer"], "fill_buffer": 1_000}
            agent = {"activation": "relu"}  # its DQN has two layers of 64 and nothing else
            algorithm = DQN.create(env="CartPole-v1", num_epochs=2, agent_kwargs=agent, **sizes, **common)
        compiled = jax.jit(algorithm.train)
        jax.block_until_ready(compiled(jax.random.PRNGKey(0)))
        began = time.perf_counter()
        jax.block_until_ready(compiled(jax.random.PRNGKey(1)))
        return time.perf_counter() - began

    short, long = (200, 700) if name == "sac" else (2_000, 22_000)
    rate = 8 * (long - short) / (trained(long) - trained(short))
    answer(rate, gradient_steps=rate if name == "sac" else rate / 4)


if __name__ == "__main__":
    library, name, seconds = sys.argv[1:]
    if library == "rejax":
        rejax(name, float(seconds))
    else:
        sb3(name, float(seconds), int(library.removeprefix("sb3-")))
