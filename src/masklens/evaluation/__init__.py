"""Is an explanation true? Faithfulness, specificity, plausibility and trust, in one table."""

from .evaluating import evaluate as evaluate
from .table import Table as Table
from .verifying import Verification as Verification
from .verifying import verify as verify
from .views import Baseline as Baseline
