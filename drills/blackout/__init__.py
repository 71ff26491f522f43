"""The Galera example through blackouts: `python -m drills.blackout --rounds N --seed S`."""
