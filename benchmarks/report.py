"""Writes the tables of the README from the committed results: no figure is typed by hand."""

import json
import re
from pathlib import Path


ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def machine(result: dict) -> str:
    """Where and with what a result was measured."""
    where, versions = result["environment"], result["environment"]["versions"]
    return f"{where['device']}, {where['cores']} cores, jax {versions['jax']}"


def bp() -> str:
    """Belief propagation: time and memory beside the alternatives."""
    result = json.loads((RESULTS / "bp.json").read_text())
    lines = [
        f"Time of {result['iterations']} iterations of sum-product belief propagation relative to"
        " ebmlearn's, and peak memory in arrays of the size of the messages"
        f" (`python -m benchmarks bp`; {machine(result)}, float32, seed 0, medians of"
        f" {result['arguments']['repeats']} rounds in one run):",
        "",
        "| RBM | instances | softplus formula | PGMax | memory, ebmlearn | memory, PGMax |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        ratios = [
            f"{row[f'{name}_ms'] / row['ebmlearn_ms']:.1f}×" if f"{name}_ms" in row else "–"
            for name in ("softplus", "pgmax")
        ]
        memory = [
            f"{row[f'{name}_arrays']:.1f}" if f"{name}_arrays" in row else "–"
            for name in ("ebmlearn", "pgmax")
        ]
        cells = [f"{row['visible']}×{row['hidden']}", str(row["batch"]), *ratios, *memory]
        lines.append(f"| {' | '.join(cells)} |")
    law = ", ".join(f"{name} {value['exponent']:.2f}" for name, value in result["growth"].items())
    many = result["many"]
    lines += [
        "",
        f"Exponents of the growth of time: {law}. {many['batch']:,} instances of 784×256, whose"
        f" messages would be {many['all_messages_mib']:,.0f} MiB, need"
        f" {many['mib_above_baseline']:,.0f} MiB. Times of ebmlearn include the overhead of an"
        " eager call, about a millisecond, which is most of what is seen at 100×50.",
    ]
    return "\n".join(lines)


def precision() -> str:
    """Float32 against float64."""
    result = json.loads((RESULTS / "precision.json").read_text())
    lines = [
        "Largest difference between float32 and float64 of a belief after 10 sweeps, over"
        f" {result['seeds']} random RBMs of 24×17 units with weights ±W"
        f" (`python -m benchmarks precision`; {machine(result)}). Where fields do not decide"
        " every unit, such models can be so frustrated that float32 misses 1e-4; what one float32"
        " rounding of the parameters does to float64 there stands in brackets:",
        "",
        "| W | beliefs near ½ | saturated | half clamped | contested | frustrated |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        cells = [f"{row[name]:.0e}" for name in ("half", "saturated", "clamped")]
        pairs = ((row[name], row[f"{name}_ulp"]) for name in ("contested", "frustrated"))
        cells += [f"{gap:.0e} ({ulp:.0e})" for gap, ulp in pairs]
        lines.append(f"| {row['magnitude']:.0f} | {' | '.join(cells)} |")
    return "\n".join(lines)


TABLES = {"bp": bp, "precision": precision}


def filled(text: str) -> str:
    """The text with each table between its marks written anew."""
    for name, table in TABLES.items():
        begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if pattern.search(text) is None:
            raise ValueError(f"README.md must hold the marks `{begin}` and `{end}`, got neither.")
        content = f"{begin}\n{table()}\n{end}"
        text = pattern.sub(lambda _, content=content: content, text)
    return text


def write() -> None:
    """Fills the tables of the README."""
    path = ROOT / "README.md"
    path.write_text(filled(path.read_text()))
    print(f"wrote {path}")
