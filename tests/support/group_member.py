"""A process of a distributed group of JAX: sums the numbers that its members read from stdin."""

import sys


def main(port: str, count: int, index: int) -> None:
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 1)
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from fragmenta.worker.backends.distributed import join

    join(f"127.0.0.1:{port}", f"127.0.0.1:{port}", count, index, "127.0.0.1")
    mesh = jax.make_mesh((count,), ("members",))
    spec = PartitionSpec("members")
    total = jax.jit(
        jax.shard_map(lambda x: jax.lax.psum(x, "members"), mesh=mesh, in_specs=spec, out_specs=PartitionSpec())
    )
    for line in sys.stdin:
        array = jax.make_array_from_process_local_data(NamedSharding(mesh, spec), np.full(1, float(line), np.float32))
        try:
            print("sum", float(total(array)[0]), flush=True)
        except ValueError as error:
            print("lost", str(error).splitlines()[0], flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
