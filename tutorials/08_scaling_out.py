# %% [markdown]
# # Scaling out: many devices, checkpoints, resuming
#
# Training runs get interrupted by a deadline, a full disk or a lost machine, and one device is not
# always enough. `fit` splits batches over any number of devices and resumes a stopped run bit for
# bit. This tutorial shows both on one machine that simulates four devices.

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
# A `jax.sharding.Mesh` names the devices. The rows of each batch are split along its first axis,
# and each device has all parameters. The batch size must be a multiple of the number of devices. On
# several hosts, call `jax.distributed.initialize()` first; nothing else changes.

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
# ## Resuming a stopped run
#
# With `checkpoint`, `fit` regularly saves the parameters, the optimizer, the chains, the random
# keys and the position in the data. It writes a temporary file and renames it when it is complete,
# so a crash leaves the last good checkpoint. Here a callback simulates the crash.

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
# The same call resumes the run. It ends with exactly the same bits as a run that was never stopped.

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
# A checkpoint records the run that it belongs to. Another model, learner or key with the same
# folder raises an error.

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
# ## Saving a model
#
# `save` writes any model to one file without pickle, completely or not at all. `load` reads it.

# %%
path = folder.parent / "digits.ebm"
ebm.save(path, resumed.model)
again = ebm.load(path, like=ebm.RBM.init(visible=64, hidden=16, key=jax.random.key(0)))
np.testing.assert_array_equal(again.weights, resumed.model.weights)
print(path.name, path.stat().st_size, "bytes")
