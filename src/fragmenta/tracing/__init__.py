"""From a training loop in JAX to a graph. Only this package, `coordinator.partition` and `fingerprint` read jaxprs."""
