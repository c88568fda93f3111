"""Predictions against reality: a device, a running server, a start-up log. The only place that imports torch."""
