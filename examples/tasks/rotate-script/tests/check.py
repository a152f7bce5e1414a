"""A shell script that rotates a file."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import shutil

from grading import WORKSPACE, grade, run, text

play = WORKSPACE / "play"


def fresh(**files):
    shutil.rmtree(play, ignore_errors=True)
    play.mkdir()
    for name, body in files.items():
        (play / name.replace("_", ".")).write_text(body)


USAGE = (2, "usage: rotate.sh FILE KEEP\n")
fresh(log="zero")
first = run("sh", "rotate.sh", "play/log", "2") == (0, "")
checks = [first and text("play/log.1") == "zero" and (play / "log").is_file() and text("play/log") == ""]
fresh(log="zero", log_1="one", log_2="two")
done = run("sh", "rotate.sh", "play/log", "3") == (0, "")
checks.append(done and [text(f"play/log.{n}") for n in (1, 2, 3)] == ["zero", "one", "two"])
fresh(log="zero", log_1="one", log_2="two")
run("sh", "rotate.sh", "play/log", "2")
checks.append(text("play/log.2") == "one" and not (play / "log.3").exists())
fresh()
(play / "my log").write_text("x")
run("sh", "rotate.sh", "play/my log", "1")
checks.append(text("play/my log.1") == "x")
checks.append(run("sh", "rotate.sh", "play/none", "2") == (1, "no play/none\n"))
checks.append(all(run("sh", "rotate.sh", *given) == USAGE for given in ([], ["play/log"], ["play/log", "0"], ["play/log", "x"])))
shutil.rmtree(play, ignore_errors=True)
grade(checks)
