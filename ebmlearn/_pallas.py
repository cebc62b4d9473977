"""Pallas, which writes kernels for NVIDIA GPUs by Triton. It is imported where there is one."""

from typing import Any

import jax


def has_gpu() -> bool:
    """Whether kernels may be written: there is a GPU, and Pallas has what they need."""
    return jax.default_backend() == "gpu" and hasattr(triton(), "load")


def triton() -> Any:
    """Pallas's Triton."""
    from jax.experimental.pallas import triton

    return triton
