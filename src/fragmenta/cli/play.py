"""`fragmenta play`: record a video of the policy of a run."""

import dataclasses
from pathlib import Path

from fragmenta.cli.arguments import read_options
from fragmenta.engines.hardware import keep_compiled_programs
from fragmenta.evaluation.playing import play
from fragmenta.evaluation.videos import check_path, write_video
from fragmenta.runs.opening import load


@dataclasses.dataclass(frozen=True)
class PlayOptions:
    """What to record."""

    out: Path | None = None
    """The file to write, .gif or .mp4 (which needs imageio-ffmpeg). Default: play.gif in the run directory."""
    episodes: int = 3
    """Episodes to play, with the most likely actions."""
    seed: int = 0
    """The same seed gives the same episodes: the first that `fragmenta eval` plays with that seed."""
    max_steps: int = 1_000
    """Truncate episodes after this many steps."""
    checkpoint: str | None = None
    """The checkpoint to take the parameters from: best, last or an iteration. Default: those at the end of the run."""


def run(arguments: list[str]) -> int:
    """Play episodes, write the video, print the returns."""
    path, options = read_options("play", "RUN", PlayOptions, arguments)
    opened = load(path, checkpoint=options.checkpoint)
    opened.check_one_seed()
    out = options.out or opened.path / "play.gif"
    check_path(out)
    keep_compiled_programs()
    video = play(opened.algorithm, opened.env, opened.params(), options.episodes, options.seed, options.max_steps)
    for ending in write_video(video, out):
        print(f"episode {ending.episode + 1}: return {ending.total:.1f}, {ending.step:,} steps")
    size = out.stat().st_size
    size_text = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} KB"
    print(f"wrote {out}: {video.per_second:.0f} frames per second, {size_text}")
    return 0
