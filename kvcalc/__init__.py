"""KV-cache memory of large language models: bytes, tokens and requests, as each engine counts them."""

__version__ = "0.1.0"
