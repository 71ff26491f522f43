"""What holds the agent to its promises. CONTRIBUTING.rst says what is in which folder."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
EXAMPLES = CHECKOUT / "etc" / "examples"
