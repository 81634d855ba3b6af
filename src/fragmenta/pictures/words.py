"""Names and units for readers: of metrics, settings, durations."""

METRICS = {
    "return_mean": "return",
    "length_mean": "episode length (steps)",
    "kl": "KL divergence (nats)",
    "entropy": "entropy (nats)",
    "explained_variance": "explained variance (share)",
    "lag": "lag of parameters (versions)",
    "source": "replica that acted",
    "dropped": "batches dropped so far",
    "memory_mb": "memory (MB)",
    "device_memory_mb": "device memory (MB)",
}
"""Metrics whose name alone does not say enough."""
SETTINGS = {
    "num_envs": "environments",
    "total_steps": "environment steps in total",
    "horizon": "steps per environment and iteration",
    "gamma": "discount (gamma)",
    "gae_lambda": "GAE lambda",
    "hidden": "hidden layers (units)",
    "compute": "precision",
    "memory": "recurrent memory (units)",
    "env": "environment",
    "env_options": "options of the environment",
    "policy": "distribution policy",
    "max_grad_norm": "largest gradient norm",
    "deadline": "longest wait (s)",
    "max_lag": "largest lag (versions)",
    "only_in_python": "not in this file",
}
"""Settings whose name alone does not say enough."""


def metric_words(name: str) -> str:
    """A metric's name for readers, with its unit."""
    if name.startswith("fill/"):
        return f"fill of {name[len('fill/') :]} (share)"
    return METRICS.get(name, _plain(name))


def setting_words(name: str) -> str:
    """A setting's name for readers, with its unit."""
    return SETTINGS.get(name, _plain(name))


def duration_words(seconds: float | None) -> str:
    """`12.3 s`, `2 min 10 s`, `1 h 05 min`, or a dash."""
    if seconds is None:
        return "-"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def _plain(name: str) -> str:
    return name.strip("_").replace("_", " ")
