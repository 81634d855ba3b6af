"""Compiles CUDA at run time with NVRTC, which comes with the CUDA packages that JAX installs; no toolkit is needed."""

import ctypes
import functools
import hashlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fragmenta.worker.kernels.values import NoRule


class CompileError(NoRule):
    """NVRTC refused a source, or is not there."""


@functools.cache
def library() -> Any | None:
    """NVRTC, or None where it is not installed."""
    for candidate in _candidates():
        try:
            return ctypes.CDLL(str(candidate))
        except OSError:
            continue
    return None


def version() -> str:
    """NVRTC's version; empty where it is not installed."""
    nvrtc = library()
    if nvrtc is None:
        return ""
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def ptx(source: str, capability: str, cache: Path | None = None) -> str:
    """A source as PTX for devices of this compute capability (as 9.0), from `cache` if it was compiled before."""
    options = [f"--gpu-architecture=compute_{capability.replace('.', '')}", "--std=c++17", "-default-device"]
    digest = hashlib.sha256("\n".join([version(), *options, source]).encode()).hexdigest()[:32]
    known = cache / f"{digest}.ptx" if cache else None
    if known and known.exists():
        return known.read_text()
    text = _compiled(source, options)
    if known:
        known.parent.mkdir(parents=True, exist_ok=True)
        partial = known.with_suffix(f".{os.getpid()}")
        partial.write_text(text)
        partial.rename(known)
    return text


def _candidates() -> Iterator[Any]:
    namespace = importlib.util.find_spec("nvidia")
    for folder in (namespace.submodule_search_locations or ()) if namespace else ():
        yield from sorted(Path(folder).glob("**/libnvrtc.so*"), reverse=True)
    yield from ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")


def _compiled(source: str, options: list[str]) -> str:
    nvrtc = library()
    if nvrtc is None:
        raise CompileError("NVRTC is not installed")
    program = ctypes.c_void_p()
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None):
        raise CompileError("NVRTC could not start")
    try:
        arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        failed = nvrtc.nvrtcCompileProgram(program, len(options), arguments)
        if failed:
            log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
            first = next((line for line in log.splitlines() if "error" in line), log[:200])
            raise CompileError(f"NVRTC: {first}")
        return _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(size_of: Any, read: Any, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    read(program, buffer)
    return buffer.value.decode()
