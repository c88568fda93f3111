"""Results as text. The only place that imports rich, and the only one that divides bytes."""
