"""The records that masklens returns beside attributions: answers and verifications; units, names of
layers."""
