from ._checkpoint import Checkpoint as Checkpoint
from ._file import load as load, load_info as load_info, save as save
from ._history import EpochReport as EpochReport, Fitted as Fitted, History as History
from ._loop import fit as fit
from ._many import fit_many as fit_many
from ._validation import Validation as Validation
