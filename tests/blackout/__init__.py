"""The Galera example through blackouts: `python -m tests.blackout --rounds N --seed S`."""
