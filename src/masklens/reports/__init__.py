"""Pictures of attributions: heat maps, reports, the viewer. Only `report` and `serve` run a model."""
