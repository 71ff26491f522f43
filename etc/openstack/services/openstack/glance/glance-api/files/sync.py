"""sync.py CONFIG SECTION COMMAND...: migrate the database in the option `connection` of a section.

MariaDB keeps the tables of an interrupted migration, and the first migration would fail because they exist.
The table `unfinished`, which database.sh creates in an empty database, shows that no migration has finished
yet: the database contains nothing of value then, and is replaced by an empty one.
"""

import configparser
import subprocess
import sys
from urllib.parse import urlsplit

import pymysql

config = configparser.RawConfigParser(strict=False)
config.read(sys.argv[1])
url = urlsplit(config[sys.argv[2]]["connection"])
database = url.path.strip("/")


def execute(*statements):
    """Run the statements; returns whether the last one has found anything."""
    with (
        pymysql.connect(
            host=url.hostname, port=url.port, user=url.username, password=url.password
        ) as connection,
        connection.cursor() as cursor,
    ):
        return [cursor.execute(statement) for statement in statements][-1]


UNFINISHED = f"CREATE TABLE {database}.unfinished (migration INT)"
is_first = execute(f"SHOW TABLES FROM {database} LIKE 'unfinished'")
if is_first:
    execute(f"DROP DATABASE {database}", f"CREATE DATABASE {database}", UNFINISHED)
status = subprocess.run(sys.argv[3:]).returncode
if is_first and status == 0:
    execute(f"DROP TABLE {database}.unfinished")
sys.exit(status if status >= 0 else 128 - status)
