"""Write a video to a file, with a caption above every frame."""

import contextlib
import functools
import itertools
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fragmenta.envs.render import INK, PAPER, pillow
from fragmenta.errors import ConfigError
from fragmenta.evaluation.playing import Frame, Video

CAPTION = 26
"""Height in pixels of the caption above the frame."""
CAPTION_WIDTH = 264
"""Width in pixels that a caption with long numbers needs: a narrower picture is enlarged to it."""
PAUSE_SECONDS = 0.8
"""How long the last frame of an episode is shown."""


def check_path(path: Path) -> None:
    """Raise ConfigError for a file that cannot be written, before anything is played."""
    if path.suffix not in (".gif", ".mp4"):
        raise ConfigError(f"out is '{path}': choose a name that ends in .gif or .mp4")
    if not path.parent.is_dir():
        raise ConfigError(f"out is '{path}', but there is no directory '{path.parent}': create it first")
    if path.suffix == ".mp4":
        _ffmpeg()


def write_video(video: Video, path: Path) -> list[Frame]:
    """Write the video atomically, as a GIF or, with ffmpeg, an MP4; returns the last frame of every episode."""
    check_path(path)
    endings: list[Frame] = []
    temporary = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        write = _write_gif if path.suffix == ".gif" else _write_mp4
        write(temporary, _pictures(video, endings), video.per_second)
        os.replace(temporary, path)
    except OSError as error:
        raise ConfigError(f"cannot write '{path}': {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return endings


def captioned(frame: Frame) -> np.ndarray:
    """The frame, in whole multiples of its size if it is small, below a caption with episode, step and return."""
    image, drawing, font = pillow()
    scale = -(-CAPTION_WIDTH // frame.picture.shape[1])
    picture = frame.picture.repeat(scale, 0).repeat(scale, 1)
    height, width = picture.shape[:2]
    height, width = height + height % 2, width + width % 2  # even, as videos must be
    paper = image.new("RGB", (width, height + CAPTION), PAPER)
    paper.paste(image.fromarray(picture), (0, CAPTION))
    text = f"episode {frame.episode + 1}   step {frame.step}   return {frame.total:.1f}"
    drawing.Draw(paper).text((10, 6), text, INK, _font(font))
    return np.asarray(paper)


def _pictures(video: Video, endings: list[Frame]) -> Iterator[np.ndarray]:
    """The captioned frames, one at a time, because all of them would fill the memory."""
    for frame in video.frames:
        picture = captioned(frame)
        yield picture
        if frame.last:
            endings.append(frame)
            yield from [picture] * round(PAUSE_SECONDS * video.per_second)


def _write_gif(path: Path, pictures: Iterator[np.ndarray], per_second: float) -> None:
    image, _, _ = pillow()

    def with_palette(picture: np.ndarray) -> Any:
        return image.fromarray(picture).quantize(256, method=image.Quantize.FASTOCTREE, dither=image.Dither.NONE)

    first = with_palette(next(pictures))
    rest = (with_palette(picture) for picture in pictures)
    first.save(path, save_all=True, append_images=rest, duration=round(1000 / per_second), loop=0)


def _write_mp4(path: Path, pictures: Iterator[np.ndarray], per_second: float) -> None:
    """Not with imageio_ffmpeg's own writer: it forks, which may hang in a program with threads, and JAX warns."""
    first = next(pictures)
    height, width = first.shape[:2]
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{per_second:g}", "-i", "-"]
    command = [_ffmpeg(), "-y", "-v", "error", *source, "-pix_fmt", "yuv420p", f"file:{path}"]
    with tempfile.TemporaryFile() as stderr:
        # In its own process group: Ctrl-C goes to this process, which then finishes the video.
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=stderr, process_group=0) as process:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # its stderr says why
                for picture in itertools.chain([first], pictures):
                    process.stdin.write(picture.tobytes())
                process.stdin.close()
        if process.returncode:
            stderr.seek(0)
            lines = stderr.read().decode(errors="replace").splitlines() or ["ffmpeg failed"]
            raise OSError(lines[-1].rpartition("] ")[2])  # without the name of ffmpeg's component


def _ffmpeg() -> str:
    try:
        import imageio_ffmpeg  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError("MP4 needs imageio-ffmpeg: pip install 'fragmenta[mp4]', or choose a .gif") from None
    return imageio_ffmpeg.get_ffmpeg_exe()


@functools.cache
def _font(font: Any) -> Any:
    return font.load_default(13)
