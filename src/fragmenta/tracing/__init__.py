"""From a training loop in JAX to a graph: the only room that looks into jaxprs."""
