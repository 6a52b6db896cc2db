"""Runs the README's commands in order on this machine: see docs_commands.py.

What is replaced is in REPLACED: addresses and folders, the model and parameter set of a real chain by tiny ones, and
what only a person can fill in. Everything else runs as it stands in the README.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

# Built before, or aliases for people.
SKIPPED = ("cargo build", "alias ")
REPLACED = {
    "n16-128": "n11-INSECURE",
    "model.gguf": "tiny-llama",
    "--tokens 6": "--tokens 3",
    "5-25": "0-2",
}
# Test sets need to be asked for.
INSECURE = re.compile(r"^(cipherhop-owner (?:keygen|chain create)|cipherhop-worker run)\b")
MOST_COMMANDS = 5


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def shown(line):
    """A command as logs may have it."""
    return re.sub(r"(cipherhop_[a-z]+_)[0-9a-f]+", r"\1...", line)


class Shell:
    """A person's terminal: commands of the README with what is replaced."""

    def __init__(self, programs, home, replaced):
        self.home, self.replaced = home, replaced
        self.env = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(home), "LC_ALL": "C.UTF-8"}

    def words(self, line):
        for old, new in self.replaced.items():
            line = line.replace(old, new)
        if INSECURE.match(line):
            line += " --allow-insecure"
        return line

    def export(self, line):
        for name, value in re.findall(r"(\w+)=(\S+)", self.words(line)):
            self.env[name] = value

    def run(self, line, expected=0):
        """Standard output of a command that must end with this code."""
        line = self.words(line)
        print(f"$ {shown(line)}", flush=True)
        done = subprocess.run(["bash", "-c", line], cwd=self.home, env=self.env, capture_output=True, text=True, timeout=300)
        if done.returncode != expected:
            sys.exit(f"{shown(line)}\nended with {done.returncode}, not {expected}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def start(self, line):
        line = self.words(line)
        print(f"$ {shown(line)} &", flush=True)
        log = open(self.home / "background.log", "a")
        return subprocess.Popen(["bash", "-c", f"exec {line}"], cwd=self.home, env=self.env, stdout=log, stderr=log)


def sections(page, blocks, shell_lines):
    """Heading -> the lines of its shell blocks, without what is skipped."""
    found = {}
    for part in re.split(r"^## ", page, flags=re.M)[1:]:
        lines = [[line for _, line in shell_lines(text) if not line.startswith(SKIPPED)] for _, text in blocks(part)]
        found[part.splitlines()[0]] = lines
    return found


def wait_until(done, what, seconds=120):
    for _ in range(seconds * 10):
        if done():
            return
        time.sleep(0.1)
    sys.exit(f"{what}: not within {seconds} s")


def answers(url):
    try:
        return urllib.request.urlopen(url, timeout=5).status == 200
    except OSError:
        return False


def stop(process, expected=0):
    process.send_signal(signal.SIGINT)
    code = process.wait(timeout=30)
    if code != expected:
        sys.exit(f"a program in the background ended with {code}")


def run(programs, readme, blocks, shell_lines):
    page = sections(readme.read_text(), blocks, shell_lines)
    [operator] = page["Run a coordinator (operator)"]
    newcomer, later = page["Lend your machine (volunteer)"]
    [owner] = page["Create a chain (key holder)"]
    if len(newcomer) > MOST_COMMANDS:
        sys.exit(f"a newcomer needs {len(newcomer)} commands, more than {MOST_COMMANDS}")
    background = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            play(programs, Path(folder), operator, newcomer, later, owner, background)
        except BaseException:
            for log in sorted(Path(folder).rglob("background.log")):
                print(f"--- {log.parent.name}\n" + "".join(log.read_text().splitlines(True)[-15:]), file=sys.stderr)
            raise
        finally:
            for process in background:
                if process.poll() is None:
                    process.kill()
                    process.wait()
    print(f"a newcomer saw hops of theirs verified within {len(newcomer)} commands")


def play(programs, folder, operator, newcomer, later, owner, background):
    grpc, http = free_port(), free_port()
    url, pages = f"http://127.0.0.1:{grpc}", f"http://127.0.0.1:{http}"
    replaced = REPLACED | {
        "/var/lib/cipherhop": str(folder / "data"),
        "127.0.0.1:7070": f"127.0.0.1:{grpc}",
        "127.0.0.1:7071": f"127.0.0.1:{http}",
        "https://HOST:7070": url,
    }

    def person(name, **more):
        home = folder / name
        home.mkdir()
        return Shell(programs, home, replaced | more)

    # the operator
    admin = person("operator")
    admin.env["CIPHERHOP_COORDINATOR"] = url
    serve, *rest = operator
    background.append(admin.start(serve))
    wait_until(lambda: answers(f"{pages}/readyz"), "the coordinator")
    said = "".join(admin.run(line) for line in rest)
    [invite], [token] = re.findall(r"cipherhop_invite_\w+", said), re.findall(r"cipherhop_owner_\w+", said)

    # the key holder, up to the chain
    holder = person("key-holder")
    (holder.home / "owner.token").write_text(token)
    (holder.home / "prompt.txt").write_text("abc")
    waiting = []
    for line in owner:
        if line.startswith("export "):
            holder.export(line)
        elif line.startswith(tuple(f"cipherhop-owner chain {do}" for do in ("wait", "result", "verify"))):
            waiting.append(line)
        else:
            holder.run(line)

    # somebody else, so that there is a quorum, and the newcomer
    other = person("other")
    second = re.search(r"cipherhop_invite_\w+", admin.run(rest[0].replace("alice", "bob"))).group()
    other.run(f"cipherhop-worker enroll --coordinator {url} --invite {second} --name other")
    background.append(other.start("cipherhop-worker run"))
    me = person("newcomer", INVITE=invite)
    running = None
    for line in newcomer:
        if line == "cipherhop-worker run":
            running = me.start(line)
            background.append(running)
        else:
            seen = me.run(line)
    if "verified" not in seen.lower():
        sys.exit(f"watch did not show a verified hop:\n{seen}")
    chain = json.load(urllib.request.urlopen(f"{pages}/api/v1/chains/demo"))
    # alice's invite was the newcomer's
    mine = [h["hop"] for h in chain["hops"] if h["state"] == "verified" and "alice" in h["verified_by"]]
    if not mine:
        sys.exit(f"no verified hop names the newcomer: {json.dumps(chain)}")
    print(f"hops {mine} are verified by the newcomer")

    # what the volunteer may say later, with a worker running
    for line in later:
        if line.startswith("cipherhop-worker resubmit --reopen"):
            me.run(line.replace("demo 7", "demo 1"), expected=5)  # nothing is stuck
        elif line.startswith("cipherhop-worker quit"):
            me.run(line)
            if running.wait(timeout=60) != 0:
                sys.exit("the worker that was told to quit did not end well")
        else:
            me.run(line)
    for line in waiting:
        holder.run(line)
    stop(background[1])
    stop(background[0])
