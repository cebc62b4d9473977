"""Files that hold a pytree of arrays, in the format of safetensors, with a text of JSON in its
metadata that lists the leaves and their checksum, which safetensors has not. Nothing is pickled,
and a file is written completely or not at all.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .. import _checks
from .._version import __version__
from ._structure import described, rebuilt


Tree = TypeVar("Tree")
# How files of versions before 0.3 begin: then come a line of JSON, and the bytes of the leaves.
_OLD = b"ebmlearn arrays, format 1\n"
TEMPORARY = ".writing-"


@_checks.usage("save(path, model)")
def save(path: str | os.PathLike, tree: PyTree, info: Any = None) -> None:
    """Writes the arrays of a pytree, such as a model, to a file.

    The new file replaces an older one only when it is complete on disk, so a crash never leaves a
    damaged file. `load` reads it.

    !!! example

        ```python
        ebmlearn.save("rbm.ebm", ebmlearn.RBM.init(16, 8), info={"data": "digits"})
        rbm = ebmlearn.load("rbm.ebm")
        ```

    **Arguments:**

    - `path`: the file.
    - `tree`: any pytree. Only its arrays are written.
    - `info`: anything that JSON can hold. [`ebmlearn.training.load_info`][] reads it.
    """
    hint = ": write `save(path, model)`" if isinstance(tree, (str, os.PathLike)) else ""
    _checks.instance("path", path, (str, os.PathLike), "the path of a file", hint)
    from safetensors import numpy as files  # here, since `import ebmlearn` needs no files

    leaves, tensors, checksum = [], {}, hashlib.sha256()
    for name, leaf in _arrays(tree).items():
        dtype, values = _plain(leaf)
        leaves.append({"name": name, "shape": list(values.shape), "dtype": dtype})
        checksum.update(values.tobytes())
        tensors[name] = values
    versions = {"ebmlearn": __version__, "jax": jax.__version__, "equinox": eqx.__version__}
    header = {
        "versions": versions,
        "leaves": leaves,
        "settings": _settings(tree),
        "tree": described(tree),
        "sha256": checksum.hexdigest(),
        "info": {} if info is None else info,
    }
    try:
        text = json.dumps(header, allow_nan=True)
    except TypeError as error:
        raise TypeError(
            f"`info` must hold what JSON can hold, such as numbers and texts, got {info!r}: write"
            " `float(x)` for an array of one number."
        ) from error
    write(path, files.save(tensors, {"ebmlearn": text}))


def load(path: str | os.PathLike, like: Tree | None = None) -> Tree:
    """Reads a pytree of arrays that `save` wrote, in this version of the library or an earlier one.

    !!! example

        ```python
        ebmlearn.save("rbm.ebm", ebmlearn.RBM.init(16, 8))
        rbm = ebmlearn.load("rbm.ebm")
        ```

    **Arguments:**

    - `path`: the file.
    - `like`: not needed for models of this library, or for tuples, lists and dictionaries of them.
      For any other pytree, pass one of the same structure whose arrays have the same shapes and
      dtypes; the result of `eqx.filter_eval_shape` works too. `load` takes leaves that are not
      arrays from it. Settings of modules, such as the iterations of a [`ebmlearn.QueryModel`][] or
      the edges of a model, must be equal to those in the file.
    """
    path = Path(path)
    header, stored = read(path)
    if like is None:
        if header.get("tree") is None:
            raise TypeError(
                f"`like` must be given for `{path}`, which holds more than models of this library:"
                " write `load(path, like=tree)` with a pytree of the same structure."
            )
        return rebuilt(header["tree"], stored)
    wanted, found = _arrays(like), {leaf["name"]: leaf for leaf in header["leaves"]}
    for name, leaf in wanted.items():
        dtype, values = _plain(leaf)
        if name not in found:
            raise ValueError(f"`{path}` must hold {name!r}, as `like` does, got {_listed(found)}.")
        got = found[name]
        if [dtype, list(values.shape)] != [got["dtype"], got["shape"]]:
            raise ValueError(
                f"`{path}` must hold {name!r} of shape {values.shape} and dtype {dtype}, as `like`"
                f" does, got shape {tuple(got['shape'])} and dtype {got['dtype']}."
            )
    mine = _settings(like)
    for name, setting in header.get("settings", {}).items():
        if name in mine and mine[name] != setting:
            raise ValueError(
                f"`{path}` must hold {name!r} = {mine[name]!r}, as `like` does, got {setting!r}."
            )
    extra = [name for name in found if name not in wanted]
    if extra:
        raise ValueError(f"`{path}` must hold only what `like` holds, got {_listed(extra)} too.")

    def restored(path: tuple, leaf: Any) -> Any:
        values = stored[jax.tree_util.keystr(path)]
        if _is_key(leaf):
            return jax.random.wrap_key_data(jnp.asarray(values), impl=jax.random.key_impl(leaf))
        return values.copy() if isinstance(leaf, np.ndarray) else jnp.asarray(values)

    dynamic, static = eqx.partition(like, _is_array)
    return eqx.combine(jax.tree_util.tree_map_with_path(restored, dynamic), static)


def load_info(path: str | os.PathLike) -> Any:
    """Reads the `info` that was passed to `save`.

    !!! example

        ```python
        ebmlearn.save("rbm.ebm", ebmlearn.RBM.init(16, 8), info={"data": "digits"})
        ebmlearn.training.load_info("rbm.ebm")["data"]  # "digits"
        ```

    **Arguments:**

    - `path`: the file.
    """
    return read(Path(path))[0]["info"]


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Reads the header and the arrays of a file, or raises an error that says what is wrong."""
    with _saying(f"`{path}` must be a file that can be read, got"):
        text = path.read_bytes()
    header, parts = (_old if text.startswith(_OLD) else _parsed)(path, text)
    checksum, out = hashlib.sha256(), {}
    for leaf in header["leaves"]:
        name, dtype = leaf["name"], jnp.dtype(leaf["dtype"].split(":")[0])
        checksum.update(parts[name])
        out[name] = np.frombuffer(parts[name], dtype).reshape(leaf["shape"])
    if checksum.hexdigest() != header["sha256"]:
        raise ValueError(f"`{path}` must agree with its checksum, got other bytes: it is damaged.")
    return header, out


def _parsed(path: Path, text: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The header, and the bytes of the arrays by name."""
    import safetensors

    try:
        found = safetensors.deserialize(text)
        # `deserialize` leaves the metadata out.
        end = 8 + int.from_bytes(text[:8], "little")
        header = json.loads(json.loads(text[8:end])["__metadata__"]["ebmlearn"])
    except safetensors.SafetensorError as error:
        raise ValueError(
            f"`{path}` must be a whole file that `save` wrote, got one that is truncated, damaged"
            f" or of another format: {error}."
        ) from error
    except KeyError as error:
        raise ValueError(
            f"`{path}` must be a file that `ebmlearn.save` wrote, got a safetensors file of"
            " another program."
        ) from error
    return header, {name: bytes(tensor["data"]) for name, tensor in found}


def _old(path: Path, text: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The same of a file of an earlier version."""
    line, found, content = text[len(_OLD) :].partition(b"\n")
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not found or header is None or len(content) != header["bytes"]:
        raise ValueError(f"`{path}` must be a whole file that `save` wrote, got a truncated one.")
    out, start = {}, 0
    for leaf in header["leaves"]:
        itemsize = jnp.dtype(leaf["dtype"].split(":")[0]).itemsize
        size = int(np.prod(leaf["shape"], dtype=np.int64)) * itemsize
        out[leaf["name"]] = content[start : start + size]
        start += size
    return header, out


def _arrays(tree: PyTree) -> dict[str, Any]:
    paths, _ = jax.tree_util.tree_flatten_with_path(eqx.filter(tree, _is_array))
    return {jax.tree_util.keystr(path): leaf for path, leaf in paths}


def _is_array(x: Any) -> bool:
    return eqx.is_array(x) or isinstance(x, jax.ShapeDtypeStruct)


def _settings(tree: PyTree, name: str = "") -> dict[str, Any]:
    """The static numbers, booleans and strings of all modules of a pytree, and tuples of them, by
    name.
    """
    if isinstance(tree, eqx.Module):
        out = {}
        for field in dataclasses.fields(tree):
            value, own = getattr(tree, field.name, None), f"{name}.{field.name}"
            if not field.metadata.get("static", False):
                out |= _settings(value, own)
            else:
                # Whatever JSON cannot hold is no setting.
                with contextlib.suppress(TypeError):
                    out[own] = _setting(value)
        return out
    named = isinstance(tree, dict)
    parts = tree.items() if named else enumerate(tree if isinstance(tree, (tuple, list)) else ())
    return {k: x for key, part in parts for k, x in _settings(part, f"{name}[{key!r}]").items()}


def _setting(x: Any) -> Any:
    """A setting as JSON returns it; for long tuples, such as edges, their length and a checksum."""
    text = json.dumps(x)
    if isinstance(x, (tuple, list)) and len(text) > 200:
        return f"{len(x)} entries with checksum {zlib.crc32(text.encode()):08x}"
    return json.loads(text)


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def checksum(leaves: list[Any]) -> str:
    """A checksum of all arrays together."""
    return f"{zlib.crc32(b''.join(_plain(x)[1].tobytes() for x in leaves)):08x}"


def _plain(leaf: Any) -> tuple[str, np.ndarray]:
    """The name of the dtype, and a NumPy array; for typed keys, their data."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        if _is_key(leaf):
            raise TypeError(f"`like` must hold arrays where there are keys, got {leaf}.")
        return str(leaf.dtype), np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
    if _is_key(leaf):
        values = np.asarray(jax.random.key_data(leaf))
        return f"{values.dtype}:{jax.random.key_impl(leaf)}", np.ascontiguousarray(values)
    values = np.asarray(leaf)
    return str(values.dtype), np.ascontiguousarray(values).reshape(values.shape)


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, [*names][:5])) + (", ..." if len(names) > 5 else "")


@contextlib.contextmanager
def _saying(text: str) -> Iterator[None]:
    """Errors of the system as a sentence that begins with a text."""
    try:
        yield
    except OSError as error:
        raise type(error)(f"{text}: {error.strerror or error}.") from error


def write(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file under another name and renames it when it is complete on disk."""
    path, temporary = Path(path), None
    own = f"{TEMPORARY}{path.name}-"
    with _saying(f"`{path}` must be a file that can be written, got"):
        try:
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=own, delete=False) as file:
                temporary = Path(file.name)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
        finally:
            if temporary is not None:
                temporary.unlink(missing_ok=True)


def folder(name: str, path: str) -> Path:
    """Creates a folder if necessary and checks that it can be written to."""
    with _saying(f"`{name}` must be a folder that can be written, got {path!r}"):
        Path(path).mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path, prefix=TEMPORARY):
            pass
    return Path(path)
