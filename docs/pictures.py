"""Draw the pictures of the distribution policies in docs/images: `python docs/pictures.py` draws them again."""

from pathlib import Path

from fragmenta import A2C, DQN, IMPALA, MAPPO, PPO, Algorithm, Cluster, project, trace
from fragmenta.drawing.flowchart import Arrow, Curve, Drawing, FlowBox, Rectangle, Text, lay_out, read_flowchart
from fragmenta.drawing.flowchart_svg import svg_file
from fragmenta.graph.show import to_mermaid

IMAGES = Path(__file__).with_name("images")
PICTURES = {
    "fused": (PPO(num_envs=64), "CartPole-v1"),
    "single_learner_coarse": (PPO(num_envs=64), "CartPole-v1"),
    "single_learner_fine": (PPO(num_envs=64), "CartPole-v1"),
    "multi_learner": (PPO(num_envs=64), "CartPole-v1"),
    "central": (A2C(num_envs=64), "CartPole-v1"),
    "environments": (MAPPO(num_envs=64), "ProbeTeam"),
    "single_learner_async": (IMPALA(num_envs=64), "CartPole-v1"),
    "central_async": (A2C(num_envs=64), "CartPole-v1"),
    "replay": (DQN(num_envs=64, prioritized=True), "CartPole-v1"),
    "replay_async": (DQN(num_envs=64, prioritized=True), "CartPole-v1"),
}
"""The algorithm and the environment in the picture of each distribution policy."""
SIDE_BY_SIDE = ("fused", "single_learner_coarse", "single_learner_fine", "central")
"""The distribution policies in the picture of the README."""
COLUMN, BOX, HEIGHT, GAP = 236, 196, 62, 64
"""Width of a column and of a box in it, height of a box, and the space for arrows between two boxes."""


def flowchart(policy: str, algorithm: Algorithm, env: str) -> tuple[list[FlowBox], list[Arrow]]:
    """An algorithm under a distribution policy with two replicas on three devices."""
    cluster = Cluster(("gpu:0", "gpu:1", "gpu:2"), replicas=2)
    return read_flowchart(to_mermaid(project(trace(algorithm, env), policy, cluster, merge=False)))


def picture(policy: str) -> str:
    """The picture of a distribution policy: its fragments, and what crosses between them."""
    return svg_file(lay_out(*flowchart(policy, *PICTURES[policy])))


def overview() -> str:
    """One algorithm, and below it its fragments under several distribution policies."""
    width = COLUMN * len(SIDE_BY_SIDE)
    shapes = _box(width / 2, 1, "one page of PPO", "act, step, learn")
    for column, policy in enumerate(SIDE_BY_SIDE):
        middle, fragments = COLUMN * (column + 0.5), flowchart(policy, PPO(num_envs=64), "CartPole-v1")
        shapes += [Curve(((width / 2 + (middle - width / 2) * 0.2, HEIGHT + 1), (middle, 124)))]
        shapes += [Text(middle, 144, f"--policy {policy}", "plain"), *_placement(middle, 158, *fragments)]
    label = f"One page of PPO, cut into fragments by the distribution policies {', '.join(SIDE_BY_SIDE)}"
    return svg_file(Drawing(0, width, 158 + 2 * HEIGHT + GAP + 1, label, tuple(shapes)))


def _placement(middle: float, top: float, boxes: list[FlowBox], arrows: list[Arrow]) -> list[Rectangle | Text | Curve]:
    shapes: list[Rectangle | Text | Curve] = []
    boxes = sorted(boxes, key=lambda box: " x" not in box.title)  # replicas above
    for row, box in enumerate(boxes):
        shapes += _box(middle, top + row * (HEIGHT + GAP), box.title, box.lines[0])
    upper, lower = top + HEIGHT, top + HEIGHT + GAP
    for down in sorted({arrow.producer == boxes[0].title.partition(" ")[0] for arrow in arrows}):
        x = middle - (64 if down else 36)
        shapes.append(Curve(((x, upper), (x, lower)) if down else ((x, lower), (x, upper))))
    if arrows:
        times = max((int(arrow.times[1:]) for arrow in arrows if arrow.times), default=1)
        for line, text in enumerate(("values cross", "once" if times == 1 else f"{times} times", "per iteration")):
            shapes.append(Text(middle - 24, upper + 20 + line * 15, text, "minor", "start"))
    return shapes


def _box(middle: float, top: float, title: str, text: str) -> list[Rectangle | Text | Curve]:
    outline = Rectangle(middle - BOX / 2, top, BOX, HEIGHT, False)
    return [outline, Text(middle, top + 26, title, "name"), Text(middle, top + 46, text, "plain")]


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / "overview.svg").write_text(overview())
    for policy in PICTURES:
        (IMAGES / f"{policy}.svg").write_text(picture(policy))


if __name__ == "__main__":
    main()
