"""Prompts that should share a prefix: what a cache of blocks holds of them, and where they stop to agree."""
