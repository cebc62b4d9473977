# Wrong types are passed on purpose, to see the errors.
# pyright: reportArgumentType=false, reportCallIssue=false

"""Wrong input: an error that names the argument, what was expected and what came."""

import errors
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import ebmlearn as ebm


pytestmark = pytest.mark.usefixtures("as_a_user")


KEY = jax.random.key(0)
W, B, C = jnp.zeros((3, 2)), jnp.zeros(3), jnp.zeros(2)
J = jnp.zeros((3, 3))
RBM = ebm.RBM(W, B, C)
SKEW = jnp.zeros((3, 3)).at[0, 1].set(1.0)
V, MASK = jnp.zeros(3), jnp.ones(3, bool)

CASES = {
    # shapes
    "weights of one axis": (lambda: ebm.RBM(B, B, C), ValueError, "`weights`", "2 axes", r"\(3,\)"),
    "nested lists": (
        lambda: ebm.RBM([[0.1]], [0.0, 0.0], [0.0]), ValueError, "`visible_bias`", "1", r"\(2,\)",
    ),
    "rows of several lengths": (
        lambda: ebm.RBM([[0.1], [0.2, 0.3]], [0.0], [0.0]),
        TypeError, "`weights`", "array of floats", r"\[0.2, 0.3\]",
    ),
    "visible bias": (lambda: ebm.RBM(W, C, C), ValueError, "`visible_bias`", "3", r"\(2,\)"),
    "hidden bias": (lambda: ebm.RBM(W, B, B), ValueError, "`hidden_bias`", "2", r"\(3,\)"),
    "batch axes": (
        lambda: ebm.RBM(W, jnp.zeros((4, 3)), jnp.zeros((5, 2))),
        ValueError, "`visible_bias`", "broadcast", r"\(5,\)",
    ),
    "features": (
        lambda: ebm.CRBM(W, jnp.zeros((3, 4)), jnp.zeros((2, 5)), B, C),
        ValueError, "`hidden_features`", r"\(2, 4\)", r"\(2, 5\)",
    ),
    "layers": (
        lambda: ebm.DBM((W, jnp.zeros((3, 4))), (B, C, jnp.zeros(4))),
        ValueError, r"`weights\[1\]`", "2 rows", r"\(3, 4\)",
    ),
    "number of biases": (lambda: ebm.DBM((W,), (B,)), ValueError, "`biases`", "one more", "1 and 1"),
    "weights of a DBM": (lambda: ebm.DBM(W, (B, C)), TypeError, "`weights`", "tuple", r"\(3, 2\)"),
    "square": (lambda: ebm.BoltzmannMachine(W, B), ValueError, "`couplings`", "square", r"\(3, 2\)"),
    "lateral": (
        lambda: ebm.SemiRestrictedBM(W, jnp.zeros((2, 2)), B, C),
        ValueError, "`couplings`", r"\(3, 3\)", r"\(2, 2\)",
    ),
    "states": (lambda: RBM.energy(jnp.zeros(4), C), ValueError, "`visible`", "3", r"\(4,\)"),
    "features of a batch": (
        lambda: ebm.CRBM.init(3, 2, 4, key=KEY).condition(jnp.zeros((7, 5))),
        ValueError, "`features`", "4", r"\(7, 5\)",
    ),
    "spins": (
        lambda: ebm.RBM.from_spins(W, C, C), ValueError, "`visible_field`", r"\(..., 3\)", r"\(2,\)",
    ),
    "evidence of the wrong length": (
        lambda: ebm.BP(1)(RBM, jnp.zeros(4), MASK), ValueError, "`evidence`", "3", r"\(4,\)",
    ),
    "evidence of another batch": (
        lambda: ebm.BP(1)(RBM, jnp.zeros((4, 3)), jnp.ones((5, 3), bool)),
        ValueError, "`observed`", "broadcast", r"\(5,\)",
    ),
    "layer": (
        lambda: ebm.DBM.init(3, (2,), key=KEY).layer_given(2, V, (C,)),
        ValueError, "`layer`", r"\[0, 1\]", "2",
    ),
    # dtypes
    "integers": (
        lambda: ebm.RBM(jnp.zeros((3, 2), int), B, C), TypeError, "`weights`", "float32", "int32",
    ),
    "half precision": (
        lambda: ebm.RBM(W.astype(jnp.bfloat16), B, C), TypeError, "`weights`", "float32", "bfloat16",
    ),
    "text": (lambda: ebm.RBM("W", B, C), TypeError, "`weights`", "floats", "'W'"),
    "mask": (lambda: ebm.BP(1)(RBM, V, V), TypeError, "`observed`", "booleans", "float32"),
    # values
    "NaN": (lambda: ebm.RBM(W.at[0, 0].set(jnp.nan), B, C), ValueError, "`weights`", "finite", "NaN"),
    "infinity": (
        lambda: ebm.RBM(W, B.at[0].set(jnp.inf), C),
        ValueError, "`visible_bias`", "finite", "infinity",
    ),
    "asymmetric": (
        lambda: ebm.BoltzmannMachine(SKEW, B), ValueError, "`couplings`", "symmetric", "differ by",
    ),
    "asymmetric lateral": (
        lambda: ebm.SemiRestrictedBM(W, SKEW, B, C), ValueError, "`couplings`", "symmetric", "1",
    ),
    "diagonal": (
        lambda: ebm.BoltzmannMachine(jnp.eye(3), B), ValueError, "`couplings`", "zero diagonal", "1",
    ),
    "evidence above 1": (
        lambda: ebm.query(RBM, V + 1.5, MASK, ebm.BP(1)),
        ValueError, "`evidence`", r"\[0, 1\]", "1.5",
    ),
    "evidence below 0": (
        lambda: ebm.query(RBM, V - 0.1, MASK, ebm.Exact()),
        ValueError, "`evidence`", r"\[0, 1\]", "-0.1",
    ),
    "infinite evidence": (
        lambda: ebm.query(RBM, V + jnp.inf, MASK, ebm.MeanField(1)),
        ValueError, "`evidence`", r"\[0, 1\]", "inf",
    ),
    "evidence without mask": (
        lambda: ebm.BP(1)(RBM, V), ValueError, "`evidence`", "go together", "`observed`",
    ),
    "spins that are not finite": (
        lambda: ebm.RBM.from_spins(W + jnp.nan, B, C), ValueError, "`couplings`", "finite", "NaN",
    ),
    "states of different batches": (
        lambda: RBM.energy(jnp.zeros((3, 3)), jnp.zeros((4, 2))),
        ValueError, "`hidden`", "broadcast", r"\(4,\)",
    ),
    "an empty batch": (
        lambda: ebm.BP(1).statistics(ebm.RBM(W, jnp.zeros((0, 3)), C)),
        ValueError, "`model`", "at least one instance", r"\(0,\)",
    ),
    # keys
    "numbers as a key": (
        lambda: ebm.RBM.init(3, 2, key=jnp.zeros(2)),
        TypeError, "`key`", r"jax\.random\.key", "float32",
    ),
    "half a seed": (
        lambda: ebm.BoltzmannMachine.init(3, key=0.5), TypeError, "`key`", "integer seed", "0.5",
    ),
    "several keys": (
        lambda: ebm.DBM.init(3, (2,), key=jax.random.split(KEY)), ValueError, "`key`", "single", "2",
    ),
    # sizes
    "numbers of units": (
        lambda: ebm.RBM(784, 500),
        TypeError, "`RBM` takes arrays", "got numbers", r"`RBM\.init\(visible=784, hidden=500, key=0\)`",
    ),
    "named numbers of units": (
        lambda: ebm.RBM(visible=784, hidden=500),
        TypeError, "`RBM` takes arrays", "got numbers", r"`RBM\.init\(visible=784, hidden=500, key=0\)`",
    ),
    "a seed beside them": (
        lambda: ebm.GaussianRBM(hidden=3, visible=2, key=0),
        TypeError, "`GaussianRBM`", "numbers", r"`GaussianRBM\.init\(hidden=3, visible=2, key=0\)`",
    ),
    "numbers of units of a DBM": (
        lambda: ebm.DBM(784, (500, 500)),
        TypeError, "`DBM` takes arrays", "numbers", r"`DBM\.init\(visible=784, hidden=\(500, 500\), key=0\)`",
    ),
    "no units": (lambda: ebm.RBM.init(0, 2, key=KEY), ValueError, "`visible`", "at least 1", "0"),
    "half a unit": (lambda: ebm.RBM.init(3, 2.5, key=KEY), TypeError, "`hidden`", "integer", "2.5"),
    "hidden layers": (lambda: ebm.DBM.init(3, 2, key=KEY), TypeError, "`hidden`", "tuple", "2"),
    "scale": (
        lambda: ebm.RBM.init(3, 2, key=KEY, scale=-1.0), ValueError, "`scale`", r"\[0, inf\)", "-1",
    ),
    # inference
    "negative iterations": (lambda: ebm.BP(-1), ValueError, "`iterations`", "negative", "-1"),
    "negative array of iterations": (
        lambda: ebm.BP(jnp.asarray(-2)), ValueError, "`iterations`", "negative", "-2",
    ),
    "endless iterations": (lambda: ebm.BP(2**31), ValueError, "`iterations`", "below", "2147483648"),
    "complex temperature": (
        lambda: ebm.BP(1, temperature=jnp.array(1j)), TypeError, "`temperature`", "number", "complex64",
    ),
    "iterations": (lambda: ebm.MeanField(2.5), TypeError, "`iterations`", "integer", "2.5"),
    "product": (lambda: ebm.BP(1, product="min"), ValueError, "`product`", "'sum', 'max', 'mixed'", "'min'"),
    "exact product": (lambda: ebm.Exact(product="sup"), ValueError, "`product`", "'sum'", "'sup'"),
    "start": (lambda: ebm.BP(1, start="zero"), ValueError, "`start`", "'centred'", "'zero'"),
    "schedule": (lambda: ebm.BP(1, schedule="random"), ValueError, "`schedule`", "'layers'", "'random'"),
    "temperature": (
        lambda: ebm.BP(1, temperature=0.0), ValueError, "`temperature`", r"\(0, inf\)", "0.0",
    ),
    "damping": (lambda: ebm.BP(1, damping=1.0), ValueError, "`damping`", r"\[0, 1\)", "1.0"),
    "tol": (lambda: ebm.BP(1, tol="small"), TypeError, "`tol`", r"\[0, inf\)", "'small'"),
    "chunk": (lambda: ebm.BP(1, chunk=0), ValueError, "`chunk`", "at least 1", "0"),
    "unroll with tol": (lambda: ebm.BP(1, tol=0.1, unroll=True), ValueError, "`tol`", "None", "0.1"),
    "unroll with an array": (
        lambda: ebm.BP(jnp.asarray(3), unroll=True), TypeError, "`iterations`", "Python integer", "int32",
    ),
    "mixed": (
        lambda: ebm.BP(1, product="mixed")(ebm.TableModel([2, 2], [(0, 1)], [jnp.eye(2)])),
        ValueError, "`product", "needs the variables over which it maximises", "a TableModel",
    ),
    "maximised by another product": (
        lambda: ebm.BP(1)(ebm.TableModel([2, 2], [(0, 1)], [jnp.eye(2)]), maximised={"x": jnp.ones(2, bool)}),
        ValueError, "`maximised` needs", "product=", "BP",
    ),
    "maximised states": (
        lambda: ebm.Exact(product="mixed")(ebm.TableModel([2, 2], [(0, 1)], [jnp.eye(2)]), maximised={"x": jnp.ones(2)}),
        TypeError, "`maximised`", "booleans", "float32",
    ),
    "maximised layers": (
        lambda: ebm.Exact(product="mixed")(RBM, maximised=ebm.Layers(jnp.ones(9, bool), None)),
        ValueError, "`maximised`", "one value a unit", "9",
    ),
    "layers of a dense model": (
        lambda: ebm.BP(1, schedule="layers")(ebm.BoltzmannMachine(J, B)),
        ValueError, "`schedule", "bipartite", "BoltzmannMachine",
    ),
    "too many units": (
        lambda: ebm.Exact()(ebm.RBM.init(40, 30, key=KEY)),
        ValueError, "`model`", "at most `max_units` = 24", "30 units",
    ),
    "too many visible units for marginal MAP": (
        lambda: ebm.Exact(product="mixed")(ebm.RBM.init(40, 3, key=KEY)),
        ValueError, "`model`", "elimination needs", "at most",
    ),
    "an unconditioned CRBM": (
        lambda: ebm.BP(1)(ebm.CRBM.init(3, 2, 4, key=KEY)),
        TypeError, "`model`", r"condition\(features\)", "CRBM",
    ),
    "a class with its article": (
        lambda: ebm.BP(1)(ebm.EnergyModel(jnp.sum, ebm.Binary(3))),
        TypeError, "`model`", "BP takes", "got an EnergyModel of",
    ),
    "no model": (lambda: ebm.Exact()(W), TypeError, "`model`", "RBM", r"\(3, 2\)"),
    "no inference": (lambda: ebm.query(RBM, V, MASK, "bp"), TypeError, "`inference`", "BP", "'bp'"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_errors_name_what_is_wrong(name):
    assert len(CASES[name]) == 5
    errors.check(CASES[name])


def test_dtypes_must_agree():
    with (
        oracle.x64(True),
        pytest.raises(TypeError, match=r"`weights` float64.*`hidden_bias` float32"),
    ):
        ebm.RBM(np.zeros((3, 2)), np.zeros(3), np.zeros(2, np.float32))


@pytest.mark.parametrize("init", [ebm.RBM.init, ebm.SemiRestrictedBM.init, ebm.GaussianRBM.init])
def test_keys_of_every_kind_are_one_key(init):
    keys = 3, np.int64(3), jax.random.key(3), jax.random.PRNGKey(3)
    weights = [np.asarray(init(4, 2, key=key).weights) for key in keys]
    for other in weights[1:]:
        np.testing.assert_array_equal(other, weights[0])


def test_evidence_is_checked_under_jit_too():
    query = jax.jit(lambda v: ebm.query(RBM, v, MASK, ebm.BP(2)))
    np.testing.assert_array_equal(query(V), V)
    with pytest.raises(Exception, match="`evidence` must lie in"):
        jax.block_until_ready(query(V + 2))


def test_known_models_may_be_made_and_used_while_tracing():
    weights, bias = np.full((3, 2), 0.5, np.float32), np.zeros(3, np.float32)

    @jax.jit
    def beliefs(c):
        model = ebm.RBM(weights, bias, c)
        known = ebm.RBM(weights, bias, bias[:2])
        symmetric = ebm.BoltzmannMachine(np.zeros((3, 3), np.float32), bias)
        return ebm.BP(3)(model).visible + ebm.BP(3)(known).visible + ebm.BP(3)(symmetric).x

    assert beliefs(jnp.zeros(2)).shape == (3,)


def test_units_of_other_models_are_not_there():
    beliefs = ebm.BP(1)(RBM)
    with pytest.raises(AttributeError, match=r"no `x`.*`visible` and `hidden`"):
        _ = beliefs.x
    with pytest.raises(AttributeError, match=r"no `visible`.*`x`"):
        _ = ebm.BP(1)(oracle.random_boltzmann(np.random.default_rng(0))).visible


@pytest.mark.parametrize("inference", [ebm.BP(2), ebm.MeanField(2), ebm.Exact()])
def test_beliefs_that_left_a_vmap_say_so(inference):
    beliefs = jax.vmap(lambda b: inference(ebm.RBM(W, b, C)))(jnp.zeros((4, 3)))
    assert beliefs.visible.shape == (4, 3)
    with pytest.raises(ValueError, match="inside the `vmap`"):
        _ = beliefs.pairwise
