"""Human-readable quantities."""


def byte_text(count: float) -> str:
    """A number of bytes as text, as in `16.4 KB`."""
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError
