"""A snapshot of a deployment as the bytes of a tar file, and back.

    snapshot.json                       where and when it was taken, what containers had recorded, the
                                        token floor, and the digest of each other file, because a tar
                                        file that was cut off may look complete
    acl.json                            acl.yml, if that was published
    events.json                         the last publications and actions of operators
    variables/<name>                    the rest is like a directory that can be published
    services/<service>/definition.json
    services/<service>/variables/...
    services/<service>/files/<name>

Pure. All contents are those of the tree, byte for byte.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import NamedTuple

from kolla_mesos_start.ctl.directory.directory import FILES, MAX_DATA, VARIABLES
from kolla_mesos_start.definition.strings import bad_segment
from kolla_mesos_start.errors import BadDefinition
from kolla_mesos_start.log import printable
from kolla_mesos_start.tree.states import MAX_FLOOR

FORMAT = 1
ABOUT, ACL, EVENTS = "snapshot.json", "acl.json", "events.json"
SERVICES = "services"
DEFINITION = "definition.json"
STATUS = "status"
MODE = 0o600


class Snapshot(NamedTuple):
    """The content of a deployment, by paths below it; `recorded` is what is below `status`.

    `deployment` and `taken` are the place and time, for people. `acl` is `acl.yml` as it is recorded, or
    empty. `events` are the last actions of operators. `floor` is the largest fencing token so far.
    """

    published: Mapping[str, bytes]
    recorded: Mapping[str, bytes]
    deployment: str = ""
    taken: str = ""
    acl: bytes = b""
    floor: int = 0
    events: bytes = b""

    @property
    def contents(self) -> dict[str, bytes]:
        """Variables and files."""
        return {path: data for path, data in self.published.items() if not is_definition(path)}

    @property
    def definitions(self) -> dict[str, bytes]:
        return {path: data for path, data in self.published.items() if is_definition(path)}


def is_definition(path: str) -> bool:
    """Whether what is published at this path below a deployment is a definition."""
    # No segment of a service's name can be equal to one of these.
    return not {VARIABLES, FILES} & set(path.split("/")[:-1])


# -- packing --------------------------------------------------------------------------------------


def pack(snapshot: Snapshot) -> bytes:
    files = {_name(path): data for path, data in snapshot.published.items()}
    if snapshot.acl:
        files[ACL] = snapshot.acl
    if snapshot.events:
        files[EVENTS] = snapshot.events
    about = {
        "format": FORMAT,
        "deployment": snapshot.deployment,
        "taken": snapshot.taken,
        "recorded": {path: data.decode(errors="replace") for path, data in snapshot.recorded.items()},
        "token_floor": snapshot.floor,
        "sha256": {name: sha256(data).hexdigest() for name, data in files.items()},
    }
    members = {ABOUT: json.dumps(about, indent=2).encode(), **files}
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), MODE
            tar.addfile(member, io.BytesIO(data))
    return target.getvalue()


def _name(path: str) -> str:
    if path.startswith(f"{VARIABLES}/"):
        return path
    return f"{SERVICES}/{path}/{DEFINITION}" if is_definition(path) else f"{SERVICES}/{path}"


# -- unpacking ------------------------------------------------------------------------------------


def unpack(data: bytes) -> Snapshot:
    """The snapshot in the bytes of a tar file. BadDefinition lists all problems."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            members = [each for each in tar.getmembers() if not each.isdir()]
            contents = [(each.name, _data(tar, each)) for each in members]
    except tarfile.TarError as error:
        raise BadDefinition([f"not a tar file, or not a whole one: {error}"]) from error
    about = dict(contents).get(ABOUT)
    if about is None:
        raise BadDefinition([f"not a snapshot: it holds no {ABOUT}"])
    found, digests = _about(about)
    files = [(name, each) for name, each in contents if name != ABOUT]
    nodes = [_published(name, each) for name, each in files if name not in (ACL, EVENTS)]
    own = dict(files)
    snapshot = found._replace(published=dict(nodes), acl=own.get(ACL, b""), events=own.get(EVENTS, b""))
    issues = [*_issues(snapshot), *_differences(digests, dict(files))]
    if len(snapshot.published) < len(nodes) or len(dict(files)) < len(files):
        issues.append("a file is in it twice")
    if issues:
        raise BadDefinition(issues)
    return snapshot


def _data(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    # A sparse file may be larger than the memory.
    file = tar.extractfile(member) if member.isreg() and not member.issparse() else None
    if file is None:
        raise BadDefinition([f"{member.name}: expected a regular file"])
    return file.read()


def _about(data: bytes) -> tuple[Snapshot, Mapping[str, str]]:
    """The snapshot without its files, and their digests."""
    try:
        about = json.loads(data)
        if about["format"] != FORMAT:
            raise BadDefinition([f"{ABOUT}: expected format {FORMAT}, found {about['format']!r}"])
        recorded = {str(path): text.encode() for path, text in about["recorded"].items()}
        origin = (printable(str(about[key])) for key in ("deployment", "taken"))
        deployment, taken = origin
        floor = int(about["token_floor"])
        return Snapshot({}, recorded, deployment, taken, floor=floor), dict(about["sha256"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadDefinition([f"{ABOUT}: not as a snapshot has it ({type(error).__name__})"]) from error


def _published(name: str, data: bytes) -> tuple[str, bytes]:
    """The path below the deployment, and its data, of a member."""
    parts = name.split("/")
    if parts[0] == SERVICES and parts[-1] == DEFINITION and not {VARIABLES, FILES} & set(parts[:-1]):
        return "/".join(parts[1:-1]), data
    path = "/".join(parts[1:] if parts[0] == SERVICES else parts)
    if is_definition(path) or (parts[0] != SERVICES and (parts[0] != VARIABLES or len(parts) != 2)):
        raise BadDefinition([f"{name}: unknown name in a snapshot"])
    return path, data


def _differences(digests: Mapping[str, str], files: Mapping[str, bytes]) -> Iterator[str]:
    """The files that have changed or are missing since the snapshot was packed."""
    for name in sorted({*digests, *files}):
        if name not in files:
            yield f"{name}: missing: the tar file is not whole"
        elif sha256(files[name]).hexdigest() != digests.get(name):
            yield f"{name}: not as it was when the snapshot was taken"


def _issues(snapshot: Snapshot) -> Iterator[str]:
    for path, data in {**snapshot.published, **snapshot.recorded}.items():
        if any(map(bad_segment, path.split("/"))):
            yield f"{path!r}: no znode can have this path"
        if len(data) > MAX_DATA:
            yield f"{path}: {len(data)} bytes are more than ZooKeeper takes ({MAX_DATA})"
    for path in snapshot.recorded:
        if path.split("/")[0] != STATUS:
            yield f"{path!r}: expected a path below {STATUS}"
        elif path != STATUS and path.rpartition("/")[0] not in snapshot.recorded:
            yield f"{path!r}: the znode above it is missing"
    if not 0 <= snapshot.floor <= MAX_FLOOR:
        yield f"{ABOUT}: token_floor: expected a number up to {MAX_FLOOR}"
    for path in snapshot.published:
        if path.split("/")[0] == STATUS:
            yield f"{path!r}: no service can have {STATUS} in its name"
