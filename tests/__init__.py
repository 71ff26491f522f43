"""What holds the agent to its promises. A file for each module; `integration/` needs a real ZooKeeper."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
EXAMPLES = CHECKOUT / "etc" / "examples"
