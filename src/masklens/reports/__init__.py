"""Pictures of attributions. Nothing here sees a model."""
