"""Is an explanation true? Verification, faithfulness, specificity, plausibility and robustness."""

from ..model.masking import Baseline as Baseline
from ..model.masking import Fill as Fill
from ..records.verification import Verification as Verification
from .choose import choose as choose
from .evaluate import evaluate as evaluate
from .generation import verify_generation as verify_generation
from .table import Table as Table
from .verify import verify as verify
