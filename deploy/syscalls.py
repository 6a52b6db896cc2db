"""Whether a systemd unit's SystemCallFilter allows every system call of a trace by strace.

    syscalls.py UNIT TRACE PROGRAM          counts from PROGRAM's start on
"""

import functools
import re
import subprocess
import sys

unit, trace, program = sys.argv[1:4]


@functools.cache
def members(name):
    """The system calls of a set such as @system-service; a plain name is itself."""
    if not name.startswith("@"):
        return frozenset([name])
    lines = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager", name], capture_output=True, text=True, check=True)
    names = [w for w in (line.strip() for line in lines.stdout.splitlines()[1:]) if w and not w.startswith("#")]
    return frozenset().union(*(members(n) for n in names))


allowed = set()
for value in re.findall(r"^SystemCallFilter=(.*)$", open(unit).read(), re.M):
    names = frozenset().union(*(members(n) for n in value.lstrip("~").split()))
    allowed = allowed - names if value.startswith("~") else allowed | names

text = open(trace, errors="replace").read()
start = text.index(f'execve("{program}"')
used = set(re.findall(r"^\d+ +(\w+)\(", text[start:], re.M)) | set(re.findall(r"<\.\.\. (\w+) resumed", text[start:]))
assert len(used) > 20, "the trace was not read right"
refused = used - allowed
if refused:
    sys.exit(f"{unit} forbids what {program} calls: {', '.join(sorted(refused))}")
print(f"{program}: {len(used)} different system calls, all allowed")
