"""What masklens gives back, beside attributions: answers, verifications, units and the names of layers."""
