# %% [markdown]
# # Scaling out: many devices, checkpoints, resuming
#
# Training runs are stopped: by a deadline, by a full disk, by a machine that is taken away. And one
# device is not always enough. `fit` splits batches over any number of devices, and a run that was
# stopped goes on bit by bit as if nothing had happened. Both is shown here on one machine, which
# for the moment pretends to have four devices.

# %%
import os


flags = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=4"

import tempfile
from pathlib import Path

import jax
import numpy as np
import optax

import ebmlearn as ebm
from ebmlearn import datasets, plotting


print(jax.devices())
data = datasets.digits()

# %% [markdown]
# ## Many devices
#
# A `jax.sharding.Mesh` names the devices. Rows of each batch are split along its first axis; the
# parameters are on all of them. The batch size is a multiple of their number. On several hosts,
# call `jax.distributed.initialize()` first; nothing else changes.

# %%
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))


def train(**options):
    """An RBM of digits by persistent contrastive divergence."""
    return ebm.fit(
        ebm.RBM.init(visible=64, hidden=16, key=jax.random.key(0)),
        ebm.SAP(num_chains=100),
        data.train.x,
        optimizer=optax.adam(3e-3),
        batch_size=100,
        key=jax.random.key(1),
        progress=False,
        **options,
    )


alone = train(epochs=6)
split = train(epochs=6, mesh=mesh)
gap = np.abs(np.asarray(alone.model.weights) - np.asarray(split.model.weights)).max()
print(f"largest difference of a weight, one device or four: {gap:.1e}")
assert gap < 1e-3

# %% [markdown]
# ## A run that is stopped
#
# With `checkpoint`, the parameters, the optimiser, the chains, the random keys and the place in the
# data are written now and then: to a temporary file that is renamed when it is whole, so that a
# crash leaves the last good one. A callback here plays the crash.

# %%
folder = Path(tempfile.mkdtemp()) / "run"


def crash(report):
    """Ends the run after the third epoch."""
    return report.epoch == 2


checkpoint = ebm.Checkpoint(folder, every=5, keep=2)
stopped = train(epochs=6, checkpoint=checkpoint, callbacks=[crash])
print("stopped by", stopped.stopped, "after", len(stopped.history.epochs["gap"]), "epochs")
print(sorted(path.name for path in folder.iterdir()))

# %% [markdown]
# The same call again goes on, and ends where a run that was never stopped ends: not nearly, but in
# every bit.

# %%
resumed = train(epochs=6, checkpoint=checkpoint)
same = all(
    np.array_equal(a, b)
    for a, b in zip(jax.tree.leaves(resumed.last), jax.tree.leaves(alone.last), strict=True)
)
print("the same in every bit:", same)
assert same

# %%
both = {"never stopped": alone.history, "stopped and resumed": resumed.history}
plotting.history(both, "gap", per="steps")

# %% [markdown]
# A checkpoint remembers what it is of. Another model, learner or key in its folder is an error and
# not a surprise.

# %%
try:
    ebm.fit(
        ebm.RBM.init(visible=64, hidden=8, key=jax.random.key(0)),
        ebm.SAP(num_chains=100),
        data.train.x,
        optimizer=optax.adam(3e-3),
        epochs=6,
        batch_size=100,
        key=jax.random.key(1),
        checkpoint=checkpoint,
        progress=False,
    )
except ValueError as error:
    print("refused: the file must hold", str(error).split("must hold")[1])
else:
    raise AssertionError("a checkpoint of another model was taken")

# %% [markdown]
# ## Keeping a model
#
# `save` and `load` write any model as one file without pickle, again whole or not at all.

# %%
path = folder.parent / "digits.ebm"
ebm.save(path, resumed.model)
again = ebm.load(path, like=ebm.RBM.init(visible=64, hidden=16, key=jax.random.key(0)))
np.testing.assert_array_equal(again.weights, resumed.model.weights)
print(path.name, path.stat().st_size, "bytes")
