"""Every answer of kvcalc: frozen values that print as JSON as they are. Sizes are whole bytes. A file a command: one loads only its own."""
