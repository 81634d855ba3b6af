"""Run a few iterations of a kept run again, as it was configured, to see where its time goes."""

from pathlib import Path

import jax

from fragmenta.coordinator.plan import project
from fragmenta.coordinator.trace import trace
from fragmenta.engines import ENGINES
from fragmenta.graph import Plan
from fragmenta.graph.timings import Timings
from fragmenta.training.hardware import keep_compiled_programs
from fragmenta.training.measure import keep_timeline
from fragmenta.training.runs import Run, cluster_of, open_run
from fragmenta.policies import Cluster
from fragmenta.training.hardware import keep_compiled_programs, local_cluster, use_cpu_devices
from fragmenta.training.timings import keep_timeline
from fragmenta.worker.timeline import Window


def plan_of(run: Run) -> Plan:
    """What ran where."""
    return project(trace(run.algorithm, run.env), run.config["policy"], cluster_of(run), run.config["merge"])


def retrace(path: Path, iterations: int) -> Timings:
    """Record so many iterations of a run's setup after a few to get warm, and keep the timeline in its directory."""
    run = open_run(path)
    keep_compiled_programs()
    config, plan = run.config, plan_of(run)
    parts = next((p.replicas for p in plan.programs if set(p.fragment.stages) & set(plan.graph.host_stages)), 1)
    window = Window(first=min(Window.first, iterations))
    window.last = window.first + iterations
    with run.env.opened(parts):
        initial = jax.jit(lambda key: run.algorithm.init(run.env, key))(jax.random.key(config["seed"]))
        with ENGINES[config["engine"]](plan, jax.tree.leaves(initial), config["deadline"], window) as engine:
            for report in engine.run(window.last):
                jax.device_get(report.metrics)  # as training does
            return keep_timeline(path, engine.recordings())
def read_setup(run: Path) -> Setup:
    """The setup of a run from its `config.json`."""
    path = run / "config.json"
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"'{run}' is no run directory: '{path}' cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ConfigError(f"'{path}' is not JSON: {error}") from None
    try:
        return _setup(run, config)
    except (KeyError, TypeError) as error:
        raise ConfigError(f"'{path}' is not what this version writes ({error}): train again") from None


def retrace(run: Path, setup: Setup, iterations: int) -> Timings:
    """Record so many iterations of a run's setup after a few to get warm, and keep the timeline in its directory."""
    keep_compiled_programs()
    algorithm, environment, plan = setup.algorithm, setup.environment, setup.plan()
    parts = next((p.replicas for p in plan.programs if set(p.fragment.stages) & set(plan.graph.host_stages)), 1)
    window = Window(first=min(Window.first, iterations))
    window.last = window.first + iterations
    with environment.opened(parts):
        initial = jax.jit(lambda key: algorithm.init(environment, key))(jax.random.key(setup.seed))
        with ENGINES[setup.engine](plan, jax.tree.leaves(initial), setup.deadline, window) as engine:
            for report in engine.run(window.last):
                jax.device_get(report.metrics)  # as training does
            return keep_timeline(run, engine.recordings())


def _setup(run: Path, config: dict[str, Any]) -> Setup:
    kinds = {kind.__name__.lower(): kind for kind in ALGORITHMS.values()}
    if config["algorithm"] not in kinds:
        raise ConfigError(f"'{run}' trained '{config['algorithm']}', which is none of {', '.join(kinds)}")
    cluster = Cluster(tuple(config["devices"]), config["replicas"], config["lag"], config["max_lag"])
    _find_devices(run, cluster)  # before anything makes an array, which would fix the number of devices
    settings: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in config["hyper_parameters"].items()
    }
    return Setup(
        kinds[config["algorithm"]](**settings),
        make(config["env"], _options(config["environment"])),
        config["policy"],
        cluster,
        config["merge"],
        config["engine"],
        config["seed"],
        config["deadline"],
    )


def _find_devices(run: Path, cluster: Cluster) -> None:
    processors = sum(device.startswith("cpu:") for device in cluster.devices)
    if processors > 1:
        with contextlib.suppress(ConfigError):  # JAX has started; then it has what it has
            use_cpu_devices(processors)
    have = local_cluster().devices
    missing = [device for device in cluster.devices if device not in have]
    if missing:
        raise ConfigError(f"'{run}' used {', '.join(missing)}, but here is only {', '.join(have)}: look at it there")


def _options(settings: dict[str, Any]) -> EnvOptions:
    """Options that make an environment with these settings."""
    if not settings:
        return EnvOptions()
    return EnvOptions(
        env_args=json.dumps(settings["arguments"]),
        wrappers=tuple(settings["wrappers"]),
        stack=settings["stack"],
        env_mode=settings["mode"],
        env_workers=settings["workers"],
        env_restarts=settings["restarts"],
        env_timeout=settings["timeout"],
    )
