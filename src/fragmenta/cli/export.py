"""`fragmenta export`: export the policy of a run to files that work without Fragmenta."""

import dataclasses
from pathlib import Path

from fragmenta.cli.arguments import read_options
from fragmenta.evaluation.export import export
from fragmenta.runs.opening import load


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """What to export, and where to."""

    out: Path | None = None
    """The directory to write to. Default: export in the run directory."""
    checkpoint: str | None = None
    """The checkpoint to take the parameters from: best, last or an iteration. Default: those at the end of the run."""
    onnx: bool = False
    """Also write policy.onnx, for runtimes without JAX."""


def run(arguments: list[str]) -> int:
    """Write the files, print their names and how to call them."""
    path, options = read_options("export", "RUN", ExportOptions, arguments)
    opened = load(path, checkpoint=options.checkpoint)
    out = options.out or opened.path / "export"
    description = export(opened, out, options.onnx)
    for name in ("policy.json", *description["sha256"]):
        print(f"{(out / name).stat().st_size:>12,} bytes  {out / name}")
    inputs, outputs = (", ".join(description[side]) for side in ("inputs", "outputs"))
    print(f"\npolicy.jaxexport takes {inputs} and returns {outputs}; it needs only JAX and flatbuffers:\n")
    print(_indented(description["example"]))
    if options.onnx:
        inputs, outputs = (", ".join(description["onnx"][side]) for side in ("inputs", "outputs"))
        print(f"\npolicy.onnx takes {inputs} and returns {outputs}; it needs only onnxruntime:\n")
        print(_indented(description["onnx"]["example"]))
    return 0


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
