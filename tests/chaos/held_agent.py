"""The light agent, whose calls but the first say for how many blows they wait.

    python3 -S -E held_agent.py light_agent.py MOST INSTRUCTION

Two groups wait for each blow, in their order: the first two for the first, and all that are left
for the last, of which there are MOST.
"""

import importlib.util
import os
import re
import sys

GROUPS_PER_BLOW = 2


def main() -> int:
    path, most = sys.argv[1:3]
    del sys.argv[1:3]
    spec = importlib.util.spec_from_file_location("light_agent", path)
    light_agent = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(light_agent)
    execution = light_agent.Address(os.environ["OPENAI_BASE_URL"]).execution
    # Relaunched, it is g00006.1-00, and of the same group.
    group = int(re.match(r"g(\d+)", execution)[1])
    blows = min(int(most), group // GROUPS_PER_BLOW + 1)
    asked = light_agent.asked
    turns = []

    def asked_and_held(turn):
        turns.append(turn)
        return asked(turn) if len(turns) == 1 else f"waits for {blows} blows {asked(turn)}"

    light_agent.asked = asked_and_held
    return light_agent.main()


if __name__ == "__main__":
    sys.exit(main())
