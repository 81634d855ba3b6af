"""Random numbers: from one shared key, and from a key per environment."""

import jax
import jax.numpy as jnp

from partition.table import INT, KEY, PLAIN, another, entries, per_element, rows, to_front

TAILS = 1e-4
"""Tolerance: in the tails, a last-digit change of a uniform number changes a normal one by a thousand times as much."""

SHARED_KEY = (
    *entries(
        {
            "beta": lambda x, key, d: jax.random.beta(key, jnp.abs(x) + 0.5, 1.5),
            "dirichlet": lambda x, key, d: jax.random.dirichlet(key, jnp.abs(x) + 0.5),
            "poisson": lambda x, key, d: jax.random.poisson(key, jnp.abs(x) + 0.5),
        },
        second="key",
        jumps=True,
        smooth=False,
        within=TAILS,
        slow=True,
    ),
    *entries(
        {
            "uniform": lambda x, key, d: x + jax.random.uniform(key, x.shape),
            "normal": lambda x, key, d: x * jax.random.normal(key, x.shape),
            "normal in the shape of a row": lambda x, key, d: x + jax.random.normal(key, x.shape[-1:]),
            "normal for each environment": lambda x, key, d: to_front(x, d).T + jax.random.normal(key, (x.shape[d],)),
            "one normal": lambda x, key, d: x + jax.random.normal(key),
            "truncated_normal": lambda x, key, d: x + jax.random.truncated_normal(key, -1, 1, x.shape),
            "gumbel": lambda x, key, d: x + jax.random.gumbel(key, x.shape),
            "exponential": lambda x, key, d: x + jax.random.exponential(key, x.shape),
            "laplace": lambda x, key, d: x + jax.random.laplace(key, x.shape),
            "orthogonal": lambda x, key, d: x[..., None] * jnp.abs(jax.random.orthogonal(key, 2)[0]),
            "multivariate_normal": lambda x, key, d: (
                rows(x, d)[:, :1] + jax.random.multivariate_normal(key, jnp.zeros(2), jnp.eye(2), (x.shape[d],))
            ),
            "dropout": lambda x, key, d: jnp.where(jax.random.bernoulli(key, 0.7, x.shape), x / 0.7, 0),
            "dropout of environments": lambda x, key, d: jnp.where(
                jax.random.bernoulli(key, 0.7, (x.shape[d], 1)), rows(x, d), 0
            ),
            "split by environments": lambda x, key, d: (
                rows(x, d) + jax.vmap(jax.random.normal)(jax.random.split(key, x.shape[d]))[:, None]
            ),
            "fold_in of positions": lambda x, key, d: (
                rows(x, d)
                + jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(key, i)))(jnp.arange(x.shape[d]))[:, None]
            ),
        },
        second="key",
        within=TAILS,
    ),
    *entries(
        {
            "permutation": lambda x, key, d: jax.random.permutation(key, x, axis=d),
            "permutation of each": lambda x, key, d: jax.random.permutation(key, x, axis=d, independent=True),
            "permutation of another": lambda x, key, d: jax.random.permutation(key, x, axis=another(x, d)),
            "permutation of indices": lambda x, key, d: to_front(x, d)[jax.random.permutation(key, x.shape[d])],
            "choice": lambda x, key, d: jax.random.choice(key, x, (3,), axis=d),
            "choice without replacement": lambda x, key, d: jax.random.choice(
                key, x, ((x.shape[d] + 1) // 2,), replace=False, axis=d
            ),
            "randint": lambda x, key, d: jax.random.randint(key, x.shape, 0, 1 + x.shape[d]),
            "randint as an index": lambda x, key, d: to_front(x, d)[
                jax.random.randint(key, (x.shape[d],), 0, x.shape[d])
            ],
            "random bits": lambda x, key, d: jax.random.bits(key, x.shape, jnp.uint8),
            "rademacher": lambda x, key, d: jax.random.rademacher(key, x.shape),
        },
        kinds=PLAIN,
        second="key",
        exact=True,
        smooth=False,
    ),
    *entries(
        {
            "bernoulli": lambda x, key, d: jax.random.bernoulli(key, jax.nn.sigmoid(x)),
            "categorical over the environments": lambda x, key, d: jax.random.categorical(key, x, axis=d),
            "categorical over another": lambda x, key, d: jax.random.categorical(key, x, axis=another(x, d)),
            "gamma": lambda x, key, d: jax.random.gamma(key, jnp.abs(x) + 0.5),
            "key from the data": lambda x, key, d: jax.random.normal(
                jax.random.fold_in(key, jnp.count_nonzero(x > 0.3)), x.shape
            ),
        },
        second="key",
        jumps=True,
        smooth=False,
        within=TAILS,
    ),
)

KEY_OF_EACH = (
    *entries(
        {
            "as many numbers as environments": lambda x, d: per_element(
                lambda key: jax.random.normal(key, (x.shape[d],)), x
            ),
            "gamma of each key": lambda x, d: per_element(lambda key: jax.random.gamma(key, 1.3), x),
            "permutation of each key": lambda x, d: per_element(lambda key: jax.random.permutation(key, 4), x),
        },
        kinds=(KEY,),
        smooth=False,
        within=TAILS,
        slow=True,
    ),
    *entries(
        {
            "normal of each key": lambda x, d: per_element(jax.random.normal, x),
            "uniform row of each key": lambda x, d: per_element(lambda key: jax.random.uniform(key, (3,)), x),
            "mean of noise": lambda x, d: jnp.mean(per_element(jax.random.normal, x), axis=d),
        },
        kinds=(KEY,),
        smooth=False,
        within=TAILS,
    ),
    *entries(
        {
            "split of each key": lambda x, d: per_element(jax.random.split, x),
            "second of a split": lambda x, d: per_element(lambda key: jax.random.split(key, 3)[1], x),
            "fold_in of each key": lambda x, d: per_element(lambda key: jax.random.fold_in(key, 7), x),
            "categorical of each key": lambda x, d: per_element(
                lambda key: jax.random.categorical(key, jnp.array([0.1, 0.9, 0.5])), x
            ),
            "randint of each key": lambda x, d: per_element(lambda key: jax.random.randint(key, (2,), 0, 9), x),
            "bernoulli of each key": lambda x, d: per_element(lambda key: jax.random.bernoulli(key, 0.4, (2,)), x),
            "data of keys": lambda x, d: jax.random.key_data(x),
            "keys there and back": lambda x, d: jax.random.wrap_key_data(jax.random.key_data(x) + jnp.uint32(1)),
            "first key for all": lambda x, d: jax.random.bits(x.reshape(-1)[0], x.shape),
            "keys compared": lambda x, d: x == jnp.flip(x, d),
            "keys chosen": lambda x, d: jnp.where(jnp.arange(x.shape[-1]) % 2 == 0, x, jnp.flip(x, d)),
        },
        kinds=(KEY,),
        exact=True,
        smooth=False,
    ),
)

DATA_INTO_KEYS = entries(
    {
        "seed by the data": lambda x, d: per_element(lambda i: jax.random.normal(jax.random.key(i)), x),
        "fold the data in": lambda x, d: per_element(
            lambda i: jax.random.uniform(jax.random.fold_in(jax.random.key(3), i), (2,)), jnp.abs(x)
        ),
    },
    kinds=(INT,),
    smooth=False,
    within=TAILS,
)

DRAWING = SHARED_KEY + KEY_OF_EACH + DATA_INTO_KEYS
