"""Draw the diagrams of the distribution policies in policies.md: `python docs/pictures.py` rewrites them."""

from pathlib import Path

from fragmenta import A2C, IMPALA, MAPPO, PPO, Cluster, project, trace
from fragmenta.graph.show import to_mermaid

PICTURES = {
    "fused": (PPO(num_envs=64), "CartPole-v1"),
    "single_learner_coarse": (PPO(num_envs=64), "CartPole-v1"),
    "single_learner_fine": (PPO(num_envs=64), "CartPole-v1"),
    "multi_learner": (PPO(num_envs=64), "CartPole-v1"),
    "central": (A2C(num_envs=64), "CartPole-v1"),
    "environments": (MAPPO(num_envs=64), "ProbeTeam"),
    "single_learner_async": (IMPALA(num_envs=64), "CartPole-v1"),
    "central_async": (A2C(num_envs=64), "CartPole-v1"),
}
"""The algorithm and the environment in the diagram of each distribution policy."""


def diagram(policy: str) -> str:
    """The Mermaid diagram of a distribution policy with two replicas on three devices."""
    algorithm, env = PICTURES[policy]
    cluster = Cluster(("gpu:0", "gpu:1", "gpu:2"), replicas=2)
    return f"```mermaid\n{to_mermaid(project(trace(algorithm, env), policy, cluster, merge=False))}```"


def main() -> None:
    file = Path(__file__).with_name("policies.md")
    text = file.read_text()
    for policy in PICTURES:
        before, heading, rest = text.partition(f"\n## {policy}\n")
        assert heading, f"policies.md has no section on {policy}"
        start, end = rest.index("```mermaid"), rest.index("```", rest.index("```mermaid") + 3) + 3
        text = before + heading + rest[:start] + diagram(policy) + rest[end:]
    file.write_text(text)


if __name__ == "__main__":
    main()
