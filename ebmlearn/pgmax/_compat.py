import jax.extend.backend
import jax.lib


def make_compatible() -> None:
    """Lets PGMax 0.6.1 run on any JAX that this library allows: it asks `jax.lib.xla_bridge` for
    the platform, which has moved to `jax.extend.backend`. Nothing inside PGMax is changed.
    """
    if not hasattr(jax.lib, "xla_bridge"):
        jax.lib.xla_bridge = jax.extend.backend  # pyright: ignore[reportAttributeAccessIssue]
