"""The three figures of each paper that matter most, taken from its tables."""

from collections.abc import Callable

from . import _equilibrium_report, _nnbm_tables, _pmp_report, _qt_report, report


# What is looked at, our figure, and what it is to be compared with.
Figure = tuple[str, str, str]


def _cells(table: str, *first: str) -> list[str]:
    """The cells of the first row of a table that begins with these."""
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[: len(first)] == list(first):
            return cells
    raise ValueError(f"there must be a row that begins with {first}, got none.")


def _plain(cell: str) -> str:
    return cell.split(" (")[0].strip("*")


def _crbm() -> list[Figure]:
    text, more = report.crbm(), report._crbm_further.crbm_further()
    published = _cells(text.partition("| MSSVM |")[2], "*published*")
    mssvm, mle = _cells(text, "MSSVM"), _cells(text, "MLE-BP")
    of_mle = _cells(text.partition("| MLE-BP |")[2], "*published*")
    large = _cells(more, "MNIST, 20% flipped", "MSSVM")
    return [
        ("wrong pixels, MNIST with 20% flipped, MSSVM", *_error(mssvm[2], published[2])),
        ("the same with 1000 hidden units", *_error(large[6], published[2])),
        ("wrong pixels, MNIST with 12×12 blanked, MLE-BP", *_error(mle[4], of_mle[4])),
    ]


def _error(here: str, published: str) -> tuple[str, str]:
    return f"{_plain(here)}%", f"published: {_plain(published)}%"


def _sap() -> list[Figure]:
    text = report.sap_semi_restricted()
    sap, trans = _cells(text, "SAP", "40,000"), _cells(text, "Trans-SAP", "40,000")
    return [
        ("nats of a test image of MNIST, SAP", _plain(sap[2]), f"published: {sap[3]}"),
        ("the same, Trans-SAP", _plain(trans[2]), f"published: {trans[3]}"),
        ("wrong labels, SAP", sap[6], f"Trans-SAP: {trans[6]}"),
    ]


def _equilibrium() -> list[Figure]:
    jumps, nats = _equilibrium_report.equilibrium_jumps(), report._equilibrium_report
    digits = _cells(jumps, "MNIST, 0 and 1", "20", "0")
    genomes = _cells(jumps, "genomes", "20", "0")
    row = _cells(nats.equilibrium_likelihood(), "Caltech", "PCD", "1000", "SGD, centred", "0.02")
    moved = _cells(
        nats.equilibrium_likelihood(),
        *("Caltech", "PCD", "1000", "SGD, centred", "0.02", "0.0001", "1"),
    )
    return [
        ("jumps between 0 and 1 of MNIST, against Gibbs", digits[7], "published: 80×"),
        ("jumps between clusters of genomes, against Gibbs", genomes[7], "published: 1,350×"),
        (
            "nats of a test image of Caltech, training images moved by a pixel",
            moved[14],
            f"not moved: {row[14]}; published: -107.8",
        ),
    ]


def _pmp() -> list[Figure]:
    rbm, zeros = _pmp_report.pmp_rbm(), _pmp_report.pmp_zeros()
    found = _pmp_report.pmp_deconvolution()
    turns, once = _cells(found, "in turns", "0"), _cells(found, "one run", "0")
    return [
        (
            "log MMD² to test images, RBM of MNIST, 50 sweeps",
            _cells(rbm, "PMP")[4],
            f"Gibbs: {_cells(rbm, 'Gibbs, reset')[4]}",
        ),
        (
            "log MMD² to test images, Ising model of zeros, 50 sweeps",
            _cells(zeros, "PMP")[4],
            f"Gibbs: {_cells(zeros, 'Gibbs, persistent')[4]}",
        ),
        ("deconvolutions that find all features", turns[4], f"one run of max-product: {once[4]}"),
    ]


def _qt() -> list[Figure]:
    rbm = _cells(_qt_report.qt_table(), "query training, RBM")
    adult, published = rbm[1].split(" ")
    faces = _cells(_qt_report.qt_frey(), "half of the pixels")
    border = _cells(_qt_report.qt_border(), "", "", "", "", "", "mean")
    return [
        ("bits for each target, adult", adult.strip("*"), f"published: {published.strip('()')}"),
        ("gain on Frey faces, nats", faces[3], f"published: {faces[4].rpartition(' ')[2]}"),
        ("border ownership, intersection over union", border[-1], "published: 96.97%"),
    ]


def _nnbm() -> list[Figure]:
    grid = _cells(_nnbm_tables.nnbm_grid(), "I-SusP")
    tuning = _cells(_nnbm_tables.nnbm_orientation(), "I-SusP")
    return [
        ("error of biases, grid, I-SusP", grid[1], f"published: {grid[2]}"),
        ("error of couplings, grid, I-SusP", grid[3], f"published: {grid[4]}"),
        ("error of couplings, orientation tuning, I-SusP", tuning[3], f"published: {tuning[4]}"),
    ]


PAPERS: dict[str, tuple[str, Callable[[], list[Figure]]]] = {
    "crbm": ("Conditional RBMs", _crbm),
    "sap": ("Stochastic approximation", _sap),
    "equilibrium": ("Learning at equilibrium", _equilibrium),
    "pmp": ("Perturb-and-max-product", _pmp),
    "qt": ("Query training", _qt),
    "nnbm": ("Nonnegative units", _nnbm),
}


def _top(page: str) -> Callable[[], str]:
    def key_figures() -> str:
        rows = [" | ".join(row) for row in PAPERS[page][1]()]
        return "\n".join(["| | here | compare |", "|---|---|---|", *(f"| {x} |" for x in rows)])

    return key_figures


TOPS = {page: _top(page) for page in PAPERS}


def papers() -> str:
    """The figures of all papers."""
    lines = ["| paper | | here | compare |", "|---|---|---|---|"]
    for page, (title, found) in PAPERS.items():
        link = f"[{title}](papers/{page}.md)"
        lines += [f"| {link if k == 0 else ''} | {' | '.join(x)} |" for k, x in enumerate(found())]
    return "\n".join(lines)
