"""A service's definition, from JSON to records. Pure: nothing here reads, writes or waits."""
