"""compute_id.py DIRECTORY HOST: make Nova's file compute_id there, unless there is one."""

import pathlib
import sys
import uuid

path = pathlib.Path(sys.argv[1], "compute_id")
path.parent.mkdir(parents=True, exist_ok=True)
if not path.exists():
    path.write_text(str(uuid.uuid5(uuid.NAMESPACE_DNS, sys.argv[2])))
