"""The reference: every public class and function shows its arguments and an example, which runs.

`python tests/reference.py` looks at the built pages.
"""

import subprocess
import sys

import programs
import pytest
import reference


@pytest.mark.parametrize("page", reference.pages())
def test_docstrings_have_arguments_and_an_example(page):
    for name in reference.pages()[page]:
        found = reference.named(name)
        text = reference.documented(found)
        told = reference.told(text)
        assert [x for x in reference.arguments(found) if x not in told] == [], name
        # Abstract classes are explained on the page about extending.
        assert "Abstract" in name or reference.examples(text), name


def test_help_shows_the_arguments_of_a_class():
    import pydoc

    import ebmlearn

    text = pydoc.plain(pydoc.render_doc(ebmlearn.RBM))
    assert "RBM(weights" in text and "- `visible_bias`: array of shape" in text


@pytest.mark.slow
@pytest.mark.parametrize("page", reference.pages())
def test_examples_run(page, tmp_path):
    """Each by itself, after a few imports. Data sets that are not there say so."""
    code = [
        "import os, sys, tempfile; sys.path.insert(0, sys.argv[1])",
        "import ebmlearn, jax, jax.numpy as jnp, matplotlib.pyplot as plt, numpy as np, optax",
        "given = dict(ebmlearn=ebmlearn, jax=jax, jnp=jnp, np=np, optax=optax)",
    ]
    for name in reference.pages()[page]:
        blocks = reference.examples(reference.documented(reference.named(name)))
        if "Abstract" in name:
            continue
        text = "\n".join(blocks)
        code += [
            "os.chdir(tempfile.mkdtemp(dir=sys.argv[2]))",
            f"try:\n    exec(compile({text!r}, {name!r}, 'exec'), dict(given))",
            f"except FileNotFoundError:\n    assert {'datasets' in name}",
            "plt.close('all')",
        ]
    env = programs.quickly() | {"MPLBACKEND": "agg", "CI": "true"}
    command = [sys.executable, "-c", "\n".join(code), str(reference.ROOT), str(tmp_path)]
    out = subprocess.run(command, env=env, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr[-3000:]


def test_arguments_are_those_of_the_signature():
    def one(first, *rest, second=1, **others):
        """A function."""

    assert reference.arguments(one) == ["first", "rest", "second", "others"]
    assert reference.told("**Arguments:**\n\n- `first`, `second`: both.\n") == {"first", "second"}
