"""The definition of a service (its command graph), from JSON to records. Nothing here does I/O."""
